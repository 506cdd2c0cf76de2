"""The store of a run outlives its workers and its agents, and workers find each other by it in every round."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.pytorch import RunStore
from tests.cli.shell import JOB, TIMEOUT, Shell, eventually, shell_in
from tests.e2e.test_local_runs import LocalRun

REMEMBERS = str(Path(__file__).with_name("scripts") / "remembers.py")

LONG = timedelta(seconds=120)
"""Time limit for workers that import torch on a busy machine."""

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"job.yaml": JOB})
        yield made


@pytest.fixture(autouse=True)
def in_the_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a worker for the test."""
    monkeypatch.setenv("HPCELASTIC_RUN_DIR", str(shell.directory / "runs" / "r"))


def places(rounds: range, ranks: int) -> list[str]:
    return [f"{round}.{rank}" for round in rounds for rank in range(ranks)]


def taken(store: RunStore) -> list[str]:
    """Pop all items of the queue. Return them sorted."""
    return sorted(store.queue_pop("places").decode() for _ in range(store.queue_len("places")))


def test_a_value_set_before_a_worker_is_killed_exists_in_the_next_round(shell: Shell) -> None:
    local = LocalRun(shell, "restarts.max=1", script=REMEMBERS, nodes="3")
    store = hpcelastic.store()
    store.wait(["met in 2"], LONG)
    assert store.multi_get(["died in", "last words"]) == [b"1", b"and so on"]
    store.set("finish", "")
    local.finish()
    status = local.run.status()
    assert (status.round, status.restarts) == (2, 1)
    assert sorted(store.get("seen").decode().split()) == places(range(1, 3), 3)
    assert taken(store) == places(range(1, 3), 3)
    assert shell.processes() == {}


def test_the_store_works_while_all_agents_are_dead(shell: Shell) -> None:
    store = hpcelastic.store()
    store.set("died in", "never")
    first = shell.agent("--nnodes", "1:2", "--node-name", "n0", REMEMBERS)
    store.wait(["met in 1"], LONG)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: shell.processes() == {})
    assert (store.get("seen"), store.add("without agents", 1)) == (b"1.0 ", 1)
    second = shell.agent("--nnodes", "1:2", "--node-name", "n1", REMEMBERS)
    store.wait(["met in 2"], LONG)
    store.set("finish", "")
    assert second.wait(TIMEOUT) == 0, second.communicate()
    assert store.get("seen") == b"1.0 2.0 "
    assert store.add("without agents", 1) == 2
    assert taken(store) == places(range(1, 3), 1)
    assert shell.processes() == {}
