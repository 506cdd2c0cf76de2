"""Fixtures of the tests with a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shell_in


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell on a machine with a GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    with shell_in(tmp_path) as made:
        yield made
