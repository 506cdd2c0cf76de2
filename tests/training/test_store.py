"""The store that the workers of a round share."""

from pathlib import Path

import pytest

from hpcelastic.errors import ConfigError
from hpcelastic.training import store
from tests.training.workers import become


def test_only_ranks_of_the_same_round_share_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, tmp_path, 1, 0)
    store().set("seed", "7")
    become(monkeypatch, tmp_path, 1, 1)
    store().wait(["seed"], timeout=0)
    assert store().get("seed") == "7"
    assert store().add("arrived", 1) == 1
    become(monkeypatch, tmp_path, 2, 0)
    assert store().get("seed") is None


def test_outside_a_run_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCELASTIC_RUN_DIR", raising=False)
    with pytest.raises(ConfigError, match="HPCELASTIC_RUN_DIR is not set"):
        store()
