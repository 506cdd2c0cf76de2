"""torch's own agents with the plug-in for torchrun: exit statuses, and the final state of the run."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.api.steering import drain
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.state import NodeState, Phase, State
from hpcelastic.rendezvous.run import read_state, steer_run
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import watched
from tests.cli.shell import eventually
from tests.pytorch.torch_agents import Nodes, TorchAgents, status, torch_agents


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "r")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[TorchAgents]:
    with torch_agents(Nodes(tmp_path, 1, 1)) as agents:
        yield agents


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[TorchAgents]:
    with torch_agents(Nodes(tmp_path, 2, 2)) as agents:
        yield agents


def running(run: RunPaths) -> State:
    """Wait until a round runs and return the state of the run."""
    eventually(lambda: any(run.register.glob("v*.json")) and read_state(FileBackend(run)).phase is Phase.RUNNING)
    return read_state(FileBackend(run))


def test_the_agent_of_a_drained_node_ends_with_status_0(alone: TorchAgents, run: RunPaths) -> None:
    agent = alone.launch("sleep", "1000")
    (node,) = running(run).participants
    drain(RunReader(run), [node.name])
    assert status(agent) == 0
    assert not read_state(FileBackend(run)).phase.final


def waits(file: Path, then: str) -> tuple[str, ...]:
    """Return a program that executes ``then`` once the file exists."""
    return "sh", "-c", f"until [ -e {file} ]; do sleep 0.05; done; {then}"


def succeeds_first(pair: TorchAgents, run: RunPaths) -> None:
    """The node that starts has succeeded, and has left, while the other one still trains."""
    assert status(pair.run("true", exit_barrier=0)) == 0
    assert read_state(FileBackend(run)).phase is Phase.RUNNING


def test_a_node_that_has_succeeded_does_not_affect_the_others(pair: TorchAgents, run: RunPaths, tmp_path: Path) -> None:
    late = pair.run(*waits(tmp_path / "go", "true"), exit_barrier=0)
    succeeds_first(pair, run)
    (tmp_path / "go").touch()
    assert status(late) == 0
    assert read_state(FileBackend(run)).phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("restarts", "reason", "failures"),
    [
        pytest.param(0, r"rank \d failed on .*: exit status 3", 1, id="torchrun ends"),
        pytest.param(1, r".* stopped its workers; .* has succeeded already, so no round can follow", 0, id="restarts"),
    ],
)
def test_a_failure_after_a_success_fails_the_run(
    restarts: int, reason: str, failures: int, pair: TorchAgents, run: RunPaths, tmp_path: Path
) -> None:
    late = pair.launch(*waits(tmp_path / "go", "exit 3"), max_restarts=restarts)
    succeeds_first(pair, run)
    (tmp_path / "go").touch()
    assert status(late) == 1
    state = read_state(FileBackend(run))
    assert (state.phase, len(state.failures)) == (Phase.FAILED, failures)
    assert re.match(reason, state.reason)


def test_nodes_for_which_there_is_no_place_do_not_end_a_round_and_are_counted_once_it_ends(
    run: RunPaths, tmp_path: Path
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    with torch_agents(Nodes(tmp_path, 1, 1)) as agents:
        for _ in range(3):
            agents.watch(counts)
        eventually(lambda: len(waiting(run)) == 2)
        assert running(run).round == 1
        steer_run(FileBackend(run), "test", checkpoint)
        eventually(lambda: any(counts.iterdir()))
    assert [file.read_text() for file in counts.iterdir()] in (["1"], ["2"]), "as many as the node has seen, at least 1"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_forked_worker_ends_when_its_agent_is_killed_or_stopped(
    sent: signal.Signals, alone: TorchAgents, tmp_path: Path
) -> None:
    agent = alone.fork(tmp_path / "pid")
    eventually((tmp_path / "pid").exists)
    with watched(int((tmp_path / "pid").read_text())) as (worker,):
        assert worker.alive and agent.pid is not None
        os.kill(agent.pid, sent)
        assert worker.ends()


def waiting(run: RunPaths) -> list[str]:
    """Return the nodes that wait while round 1 runs."""
    members = [lease.member for lease in read_leases(run.leases).values()]
    return [member.node for member in members if (member.node_state, member.round) == (NodeState.READY, 1)]
