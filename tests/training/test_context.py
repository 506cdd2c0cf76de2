import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcelastic.errors import ConfigError
from hpcelastic.training import Context, context
from hpcelastic.training.context import local_index

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "HPCELASTIC_ROUND", "HPCELASTIC_NODE", "HPCELASTIC_RUN_DIR")


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_plain_process_is_a_world_of_one() -> None:
    assert context() == Context(0, 0, 1, 0, socket.gethostname(), None)


def test_under_an_agent_the_context_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("5", "1", "6", "3", "n2", "/runs/digits"), strict=True):
        monkeypatch.setenv(name, value)
    assert context() == Context(5, 1, 6, 3, "n2", Path("/runs/digits"))


def test_torchruns_restart_count_is_not_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert context().round == 0


def test_the_context_does_not_import_torch() -> None:
    code = "import sys; from hpcelastic.training import context; context(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("value", ["two", "-1", "1.5", "²", " 1"])
def test_the_error_names_a_variable_that_is_not_a_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        context()


def test_the_local_index_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCELASTIC_LOCAL_RANK", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert local_index() == 2
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("HPCELASTIC_LOCAL_RANK", "3")
    assert (local_index(), context().local_rank) == (3, 0)
