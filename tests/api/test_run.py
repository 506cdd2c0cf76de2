"""The handle of a run whose rendezvous is kept in a server: it connects once, however often it looks at the run."""

import gc
import io
from pathlib import Path

import pytest

from hpcelastic.api.display import display
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.protocol.settings import RendezvousSettings, Settings
from hpcelastic.rendezvous.run import close_run, open_run
from hpcelastic.storage.paths import RunPaths
from tests.backends.servers import Server, servers_of_every_backend
from tests.cli.shell import eventually

IN_SERVER = RendezvousSettings(backend="theirs", endpoint="here:1", lease=0.04, margin=0.01, poll=0.01)
"""So short a lease that the liveness of the run is checked at nearly every look."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    for module in ("run", "watching"):
        monkeypatch.setattr(f"hpcelastic.api.{module}.POLL", 0.01)
    return servers_of_every_backend(monkeypatch)["here:1"]


@pytest.fixture
def agent(server: Server, tmp_path: Path) -> Backend:
    """The backend of an agent of the run in ``tmp_path``."""
    paths = RunPaths(tmp_path)
    paths.register.mkdir(parents=True)
    backend = open_agent_backend(paths, "r", IN_SERVER)
    open_run(backend, "r", Settings(rendezvous=IN_SERVER), "test")
    return backend


def test_all_looks_use_one_connection(server: Server, agent: Backend) -> None:
    run = Run(agent.root)
    for _ in range(3):
        assert run.status().phase == "joining"
        assert list(run.logs()) == []
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    with display(run, io.StringIO()) as show:
        assert [show().phase for _ in range(3)] == 3 * ["joining"]
    assert run.cancel().phase == "closed"
    assert run.wait().phase == "closed"
    assert server.readers == 1


def test_the_connection_ends_with_the_handle(server: Server, agent: Backend) -> None:
    run = Run(agent.root)
    run.status()
    assert server.open == 2
    del run
    gc.collect()
    assert server.open == 1, "the agent's"


def test_a_callback_is_called_after_the_handle_is_gone(server: Server, agent: Backend) -> None:
    seen: list[RunStatus] = []
    Run(agent.root).on_change(seen.append)
    gc.collect()
    eventually(lambda: seen)
    assert server.readers == 1
    close_run(agent, "test", "enough")
    eventually(lambda: seen[-1].ended and server.open == 1)
    assert server.readers == 1
