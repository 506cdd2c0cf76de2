"""Requests for stacks: what is refused, and how long they wait."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.api import stacks as module
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.api.stacks import stacks
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.state import Member, NodeState, Phase, participants_of
from hpcelastic.rendezvous.run import read_state, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import job


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run whose first round has two nodes. No agent is there."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    made = prepare(resolve(job(), []))
    members = participants_of(Member(f"n{i}@0", NodeState.RUNNING, 1, 1, "10.0.0.1", i) for i in (1, 2))
    steer_run(
        FileBackend(made),
        "test",
        lambda state: Decision(replace(state, phase=Phase.RUNNING, round=1, participants=members), ""),
    )
    return made


def test_the_texts_of_all_nodes_are_returned_in_the_order_of_ranks(paths: RunPaths) -> None:
    for node in ("n2", "n1"):
        files.make_directory(paths.stacks(1, node).parent)
        files.publish(paths.stacks(1, node), f"stacks of {node}".encode())
    found = stacks(Run(paths.root).reader, 10.0)
    assert list(found.items()) == [("n1", "stacks of n1"), ("n2", "stacks of n2")]
    state = read_state(FileBackend(paths))
    assert (state.stacks, state.phase, state.round) == (1, Phase.RUNNING, 1)


def test_a_node_that_does_not_answer_is_named(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPORT_INTERVAL", 0.0)
    files.make_directory(paths.stacks(1, "n1").parent)
    files.publish(paths.stacks(1, "n1"), b"stacks of n1")
    lines: list[str] = []
    with pytest.raises(StoreError, match=r"n2 has not written the stacks of its workers within 0\.2 s; .*0001"):
        stacks(Run(paths.root).reader, 0.2, lines.append)
    assert lines[0] == "waiting for the stacks of n2"


def set_phase(paths: RunPaths, phase: Phase) -> None:
    steer_run(FileBackend(paths), "test", lambda state: Decision(replace(state, phase=phase), ""))


@pytest.mark.parametrize(("phase", "timeout"), [(Phase.JOINING, 0.2), (Phase.SUCCEEDED, 1000.0)])
def test_without_a_round_there_are_no_stacks(phase: Phase, timeout: float, paths: RunPaths) -> None:
    set_phase(paths, phase)
    with pytest.raises(ConfigError, match="no round runs"):
        stacks(Run(paths.root).reader, timeout)
    assert read_state(FileBackend(paths)).stacks == 0


def test_a_round_that_is_forming_is_waited_for(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPORT_INTERVAL", 0.0)
    set_phase(paths, Phase.JOINING)
    for node in ("n1", "n2"):
        files.make_directory(paths.stacks(1, node).parent)
        files.publish(paths.stacks(1, node), b"text")

    def form(line: str) -> None:
        assert line == "waiting for a round to form: the run was created"
        set_phase(paths, Phase.RUNNING)

    assert stacks(Run(paths.root).reader, 1000.0, form) == {"n1": "text", "n2": "text"}
