from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import MARK, Shell, shell_in


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """This process in its own working directory. All processes that it starts are ended with the test."""
    with shell_in(tmp_path) as made:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(MARK, made.mark)
        yield made
