"""Agents on one machine take different node names."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic import bootstrap, entry
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


class Machine:
    """A machine on which agents of the run have the names ``taken``. ``tried`` lists the identities that a new agent
    has tried."""

    def __init__(self, taken: set[str]) -> None:
        self.taken, self.tried = taken, list[NodeIdentity]()

    @contextlib.contextmanager
    def node_name_lock(self, _backend: object, identity: NodeIdentity, **_: object) -> Iterator[NodeIdentity]:
        self.tried.append(identity)
        if identity.name in self.taken:
            raise NameTaken(f"node {identity.name} is in this run already")
        yield identity


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
    machine = Machine(taken)
    monkeypatch.setattr(entry, "node_name_lock", machine.node_name_lock)
    monkeypatch.setattr(bootstrap._NodeRun, "run", lambda self: 0)
    monkeypatch.setattr(agent, "start_agent", lambda: FIRST)  # it would fork the test process
    command = ["agent", "--rdzv-endpoint", str(tmp_path / "runs"), "--rdzv-id", "r", *flags.split(), __file__]
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
