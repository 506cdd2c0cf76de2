"""torch's own agents over the plug-in for torchrun: how they end, and what becomes of the run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.api.steering import drain
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.store.paths import RunPaths
from tests.cli.shell import eventually
from tests.pytorch.torch_agents import Nodes, TorchAgents, status, torch_agents


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "r")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[TorchAgents]:
    with torch_agents(Nodes(tmp_path, 1, 1)) as agents:
        yield agents


def running(run: RunPaths) -> State:
    """The state of the run once a round runs."""
    eventually(lambda: any(run.register.glob("v*.json")) and read_state(run).phase is Phase.RUNNING)
    return read_state(run)


def test_the_agent_of_a_drained_node_ends_with_status_0(alone: TorchAgents, run: RunPaths) -> None:
    agent = alone.launch("sleep", "1000")
    (node,) = running(run).participants
    drain(run, [node.name])
    assert status(agent) == 0
    assert not read_state(run).phase.final
