"""Agents on one machine take different node names."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcelastic import bootstrap
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import agent
from hpcelastic.cli import main as hpcelastic
from hpcelastic.errors import NameTaken
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm.restart import FIRST
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import Shell

HOST = os.uname().nodename.partition(".")[0]
STEP = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "0"}
RunNodeAgent = Callable[..., int]


class Taken:
    """A machine on which agents of the run have ``names``. ``tried`` lists the identities that a new agent has
    tried."""

    def __init__(self, names: set[str]) -> None:
        self.names, self.tried = names, list[NodeIdentity]()

    def run_node_agent(self, _task: object, place: NodeIdentity, *_more: object, **_options: object) -> int:
        self.tried.append(place)
        if place.name in self.names:
            raise NameTaken(f"node {place.name} is in this run already")
        return 0


@pytest.mark.parametrize(
    ("environ", "flags", "taken", "expected", "status"),
    [
        pytest.param({}, "", set(), [(HOST, "")], 0, id="first"),
        pytest.param({}, "", {HOST}, [(HOST, ""), (f"{HOST}.2", HOST)], 0, id="second"),
        pytest.param(
            {}, "", {HOST, f"{HOST}.2"}, [(HOST, ""), (f"{HOST}.2", HOST), (f"{HOST}.3", HOST)], 0, id="third"
        ),
        pytest.param({}, "--node-name n7", {"n7"}, [("n7", HOST)], 2, id="name given by the user"),
        pytest.param(STEP, "", {"n1"}, [("n1", "")], 2, id="name given by SLURM"),
    ],
)
def test_only_a_default_name_is_changed(
    environ: dict[str, str],
    flags: str,
    taken: set[str],
    expected: list[tuple[str, str]],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    machine = Taken(taken)
    for module in (agent, bootstrap):
        monkeypatch.setattr(module, "run_node_agent", machine.run_node_agent)
    monkeypatch.setattr(agent, "start_agent", lambda: FIRST)  # it would fork the test process
    command = ["agent", "--rdzv-endpoint", str(tmp_path), "--rdzv-id", "r", *flags.split(), __file__]
    assert hpcelastic(command) == status
    assert [(place.name, place.host) for place in machine.tried] == expected


def test_a_second_agent_on_a_machine_joins_the_run(shell: Shell) -> None:
    shell.write({"train.py": "import os\nassert os.environ['WORLD_SIZE'] == '2'\n"})
    agents = [shell.agent("--nnodes=2", "--nproc-per-node=1", "--preload=argparse", "train.py") for _ in range(2)]
    for started in agents:
        _, stderr = started.communicate(timeout=60)
        assert started.returncode == 0, stderr
    nodes = read_state(FileBackend(RunPaths(shell.directory / "runs" / "r"))).participants
    assert sorted(participant.name for participant in nodes) == [HOST, f"{HOST}.2"]
