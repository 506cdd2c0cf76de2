"""The entry of a node into a run: its only connection to a server, its name, and what it reads."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.settings import AgentSettings, Entrypoint, WorkerSettings
from hpcelastic.backends.files import FileBackend
from hpcelastic.bootstrap import Task, run_node_agent
from hpcelastic.entry import Entry, enter_run
from hpcelastic.errors import ConfigError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, Settings
from hpcelastic.rendezvous.run import open_run, read_state
from hpcelastic.storage import files
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.paths import RunPaths
from tests.backends.servers import Server, servers_of_every_backend

SETTINGS = Settings(NodeRange(1, 1), RendezvousSettings(backend="theirs", endpoint="here:1", last_call=0.0))
HERE = NodeIdentity("n1", address="127.0.0.1")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return servers_of_every_backend(monkeypatch)["here:1"]


def test_an_agent_connects_to_the_server_once(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    agent = AgentSettings(
        Entrypoint(script=str(script)), WorkerSettings(preload=()), network=NetworkSettings(notifications=False)
    )
    assert run_node_agent(Task(RunPaths(tmp_path / "run"), "r", SETTINGS, agent), HERE) == 0
    assert (server.agents, server.readers, server.open) == (1, 0, 0)


def test_the_backend_is_open_as_long_as_the_run_is_entered(server: Server, tmp_path: Path) -> None:
    with enter_run(Entry(RunPaths(tmp_path / "run"), "r", SETTINGS, HERE)) as entered:
        assert read_state(entered.backend) == entered.found.state
        assert server.open == 1
    assert server.open == 0


def test_a_run_that_cannot_be_entered_leaves_no_connection(server: Server, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with (
        enter_run(Entry(paths, "r", SETTINGS, HERE)),
        pytest.raises(ConfigError, match="n1 is in this run already"),
        enter_run(Entry(paths, "r", SETTINGS, HERE)),
    ):
        pass
    assert (server.agents, server.open) == (2, 0)


def test_the_next_free_name_is_taken_with_the_same_connection(server: Server, tmp_path: Path) -> None:
    """An agent that serves the rendezvous ends the server with its connection, and others use it already."""
    entry = Entry(RunPaths(tmp_path / "run"), "r", SETTINGS, HERE, any_name=True)
    with enter_run(entry) as first, enter_run(entry) as second, enter_run(entry) as third:
        assert [each.member.name for each in (first, second, third)] == ["n1", "n1.2", "n1.3"]
        assert (server.agents, server.open) == (3, 3)
    assert server.open == 0


LARGE_JOB = replace(HERE, job="7", job_nodes=100)
IN_FILES = Settings(NodeRange(1, 1), RendezvousSettings(last_call=0.0))


@pytest.mark.parametrize(
    ("identity", "again", "rounds", "looks"),
    [
        pytest.param(LARGE_JOB, False, 0, False, id="a large job begins a run"),
        pytest.param(replace(LARGE_JOB, job_nodes=64), False, 0, True, id="a smaller job"),
        pytest.param(replace(LARGE_JOB, restart=1), False, 0, True, id="a job that was requeued"),
        pytest.param(LARGE_JOB, True, 0, True, id="an agent that is started again"),
        pytest.param(LARGE_JOB, False, 1, True, id="a run that an earlier job began"),
    ],
)
def test_only_the_nodes_of_a_large_job_that_begins_a_run_do_not_list_the_leases(
    identity: NodeIdentity, again: bool, rounds: int, looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path / "run")
    for directory in (paths.register, paths.leases):
        files.make_directory(directory)
    backend = FileBackend(paths)
    state = open_run(backend, "r", IN_FILES, "n1@0-0")
    if rounds:
        assert backend.register("n1@0-0").commit(1, encode(replace(state, round=rounds)))
    listed: list[str] = []

    def leases(backend: FileBackend, node_name: str = "", *, processes: bool = False) -> dict[str, Lease]:
        listed.append(node_name)
        return {}

    monkeypatch.setattr(FileBackend, "leases", leases)
    with enter_run(Entry(paths, "r", IN_FILES, identity, again=again)) as entered:
        assert entered.member.name == "n1"
    assert listed == (["n1.j7", "n1"] if looks else [])
