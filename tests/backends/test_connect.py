"""The connection to a run's server: when it is opened and closed, and what a reader sees without it."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcelastic.backends import files as file_backend
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import (
    LastStateBackend,
    RunReader,
    creation_time,
    open_agent_backend,
    open_backend,
    run_nonce,
)
from hpcelastic.backends.files import FileBackend
from hpcelastic.backends.server_address import ServerAddress, write_address
from hpcelastic.errors import StoreError
from hpcelastic.protocol.settings import RendezvousSettings, Settings
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.run import announce_run, close_run, open_run, read_state
from hpcelastic.storage import files, history
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import FIRST
from tests.backends.servers import Server, Servers, servers_of_every_backend

HERE, THERE = "here:1", "there:1"
NAMED = RendezvousSettings(backend="theirs", endpoint=HERE)
DISCOVERED = RendezvousSettings(backend="static")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return servers_of_every_backend(monkeypatch)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.register.mkdir(parents=True)
    return paths


def begin(paths: RunPaths, settings: RendezvousSettings = NAMED, address: str = "") -> Backend:
    """Create the run like its first agent, and return the agent's backend."""
    backend = open_agent_backend(paths, "r", settings, address)
    open_run(backend, "r", Settings(rendezvous=settings), "test")
    return backend


def files_in(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


# The identity of a run


def test_the_nonce_and_the_time_of_a_run_stay_after_old_versions_were_removed(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_backend, "_KEPT_VERSIONS", 2)
    monkeypatch.setattr(history, "SETTLE_DELAY", 0.0)
    backend = begin(paths, RendezvousSettings())
    nonce, created = run_nonce(paths), creation_time(paths)
    register = FileBackend(paths).register("test")
    for _ in range(20):
        register.update(lambda state: state)
    first, second, *_ = register.numbers()
    assert (first, second > 10) == (1, True)
    assert (run_nonce(paths), creation_time(paths)) == (nonce, created)
    assert read_state(backend).run_id == "r"


def test_the_nonce_is_read_once_this_client_sees_the_first_version(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may remember that the name was absent, although the name is listed."""
    begin(paths, RendezvousSettings())
    first, absent, read, exists = paths.register / FIRST, [1, 1], files.read_json, files.exists
    monkeypatch.setattr(files, "read_json", lambda path: None if path == first and absent else read(path))
    monkeypatch.setattr(files, "exists", lambda path: not absent.pop() if path == first and absent else exists(path))
    monkeypatch.setattr(files, "poll_delays", lambda limit: [0.0] * 5)
    assert run_nonce(paths)


# Agents


def test_an_agent_owns_its_connection(servers: Servers, paths: RunPaths) -> None:
    begin(paths).close()
    assert (servers[HERE].agents, servers[HERE].open) == (1, 0)
    begin(paths)
    assert (servers[HERE].agents, servers[HERE].open) == (2, 1)


def test_a_reader_in_the_process_of_an_agent_has_a_connection_of_its_own(servers: Servers, paths: RunPaths) -> None:
    agent = begin(paths)
    with contextlib.closing(open_backend(paths)) as reader:
        assert read_state(reader) == read_state(agent)
    assert (servers[HERE].agents, servers[HERE].readers, servers[HERE].open) == (1, 1, 1)


# Readers


def test_one_connection_serves_many_looks(servers: Servers, paths: RunPaths) -> None:
    agent, reader = begin(paths), RunReader(paths)
    assert read_state(reader.backend()).phase is Phase.JOINING
    close_run(agent, "test", "enough")
    for _ in range(3):
        assert read_state(reader.backend()).phase is Phase.CLOSED
        assert reader.backend().leases() == {}
    assert servers[HERE].readers == 1
    agent.close()
    reader.close()
    assert servers[HERE].open == 0


def test_nothing_is_opened_before_the_first_look(servers: Servers, paths: RunPaths) -> None:
    begin(paths)
    reader = RunReader(paths)
    reader.close()
    assert servers[HERE].readers == 0


def test_a_look_after_the_end_connects_again(servers: Servers, paths: RunPaths) -> None:
    begin(paths)
    reader = RunReader(paths)
    for _ in range(2):
        assert read_state(reader.backend()).run_id == "r"
        reader.close()
    assert servers[HERE].readers == 2


def test_the_copy_is_shown_until_the_server_answers_again(servers: Servers, paths: RunPaths) -> None:
    begin(paths)
    reader = RunReader(paths)
    state = read_state(reader.backend())
    servers[HERE].up = False
    for _ in range(2):
        copied = reader.backend()
        assert isinstance(copied, LastStateBackend)
        assert read_state(copied) == state
    with pytest.raises(StoreError, match="can't be reached, or has no record of it"):
        close_run(copied, "test", "enough")
    servers[HERE].up = True
    close_run(reader.backend(), "test", "enough")
    assert not isinstance(reader.backend(), LastStateBackend)
    assert servers[HERE].readers == 2


def _stop(server: Server) -> None:
    server.up = False


@pytest.mark.parametrize("end", [_stop, lambda server: server.records.clear()], ids=["stopped", "of another run"])
def test_a_server_that_has_moved_is_found_at_once(
    end: Callable[[Server], None], servers: Servers, paths: RunPaths
) -> None:
    begin(paths, DISCOVERED, HERE)
    write_address(paths, ServerAddress(HERE))
    reader = RunReader(paths)
    state = read_state(reader.backend())
    servers[THERE].records |= {"r": servers[HERE].records["r"].copy()}
    end(servers[HERE])
    write_address(paths, ServerAddress(THERE))
    backend = reader.backend()
    assert not isinstance(backend, LastStateBackend)
    assert read_state(backend) == state
    assert servers[THERE].readers == 1


def test_a_server_without_the_run_is_left_at_once(servers: Servers, paths: RunPaths) -> None:
    announce_run(paths, "r", Settings(rendezvous=NAMED))
    backend = open_backend(paths)
    assert isinstance(backend, LastStateBackend)
    assert read_state(backend).reason == "no agent has joined yet"
    assert (servers[HERE].readers, servers[HERE].open) == (1, 0)


def test_without_a_copy_the_error_of_the_server_is_raised(servers: Servers, paths: RunPaths) -> None:
    begin(paths)
    for copy in (paths.known, paths.newest):
        copy.unlink(missing_ok=True)
    reader = RunReader(paths)
    reader.backend()
    servers[HERE].up = False
    with pytest.raises(StoreError, match="here:1 can't be reached: connection refused"):
        reader.backend()


def test_a_run_that_begins_meanwhile_is_seen(servers: Servers, paths: RunPaths) -> None:
    reader = RunReader(paths)
    with pytest.raises(StoreError, match="holds no run"):
        read_state(reader.backend())
    begin(paths)
    assert read_state(reader.backend()).run_id == "r"


def test_a_look_creates_no_file(servers: Servers, paths: RunPaths, tmp_path: Path) -> None:
    absent, kept_in_files, in_server = RunPaths(tmp_path / "absent"), RunPaths(tmp_path / "files"), paths
    kept_in_files.register.mkdir(parents=True)
    open_run(FileBackend(kept_in_files), "r", Settings(), "test")
    begin(in_server)
    before = files_in(tmp_path)
    for run in (absent, kept_in_files, in_server):
        with contextlib.closing(RunReader(run)) as reader, contextlib.suppress(StoreError):
            reader.backend().leases()
            read_state(reader.backend())
    assert files_in(tmp_path) == before
