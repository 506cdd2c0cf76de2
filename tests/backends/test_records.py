"""The format of leases in the records of a server, and a server that loses its records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from hpcelastic.backends.backend import AnyRegister
from hpcelastic.backends.records import Records, RecordsBackend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.decide import request_stacks
from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import NodeState, Phase
from hpcelastic.rendezvous.run import open_run, steer_run
from hpcelastic.storage.paths import RunPaths
from tests.backends.servers import Connection, Server, servers_of_every_backend
from tests.protocol.builders import member
from tests.rendezvous.nodes import make_world, turns

READY = member("a", NodeState.READY, 0)


@pytest.mark.parametrize(
    ("lease", "heartbeat"),
    [
        pytest.param({"heartbeat": 7, "member": encode(READY)}, 7, id="now"),
        pytest.param({"beat": 5, "member": encode(READY)}, 5, id="an older version"),
        pytest.param({"member": encode(READY)}, None, id="unknown"),
    ],
)
def test_a_lease_is_read(lease: dict[str, object], heartbeat: int | None, tmp_path: Path) -> None:
    records = create_autospec(Records, instance=True)
    records.all.return_value = {"nodes/a@0": json.dumps(lease)}
    leases = RecordsBackend("server", records, StateCopies(RunPaths(tmp_path))).leases()
    assert {node: (lease.heartbeat, lease.member) for node, lease in leases.items()} == (
        {} if heartbeat is None else {"a@0": (heartbeat, READY)}
    )


def test_a_lease_that_a_server_shows_again_is_no_renewal(tmp_path: Path) -> None:
    """A member of a cluster may execute a request late that was sent to another one meanwhile."""
    connection = Connection(Server(), "run")
    backend = RecordsBackend("server", connection, StateCopies(RunPaths(tmp_path)))
    lease, observer = backend.lease("a@0"), backend.observer(Expiry(10.0, 2.0), lambda: 100.0)
    lease.renew(READY)
    old = connection.all("nodes/")["nodes/a@0"]
    lease.renew(replace(READY, node_state=NodeState.LEFT))
    assert observer.observe([])["a@0"].member == replace(READY, node_state=NodeState.LEFT)
    connection.set("nodes/a@0", old)
    (seen,) = observer.observe([]).values()
    assert seen.member is not None and seen.member.node_state is NodeState.LEFT


LOST = "the server has lost the state of this run: it holds version 1, and had version 3; use another run id"


@pytest.mark.parametrize("known_by", ["reading", "a commit", "a notification"])
def test_a_register_refuses_a_version_that_is_older_than_one_it_knows(known_by: str, tmp_path: Path) -> None:
    server = Server()

    def register() -> AnyRegister:
        backend = RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path)))
        return backend.register("me")

    used = writer = register()
    if known_by != "a commit":
        used = register()
    for number in range(3):
        assert writer.commit(number, {"phase": "joining"})
    if known_by == "reading":
        assert used.read().number == 3
    elif known_by == "a notification":
        used.assume(3)
    server.records.clear()
    assert register().commit(0, {"phase": "joining"})
    with pytest.raises(StoreError, match=LOST):
        used.read()
    with pytest.raises(StoreError, match=LOST):
        used.commit(1, {"phase": "joining"})
    for number in range(1, 4):
        assert register().commit(number, {"phase": "joining"})
    with pytest.raises(StoreError, match="has lost the state of this run"):
        used.commit(4, {"phase": "joining"})


@pytest.mark.parametrize("versions", [2, 3, 4])
def test_a_register_refuses_the_versions_of_another_history(versions: int, tmp_path: Path) -> None:
    """The server may have as many versions again before this node looks."""
    server = Server()

    def register() -> AnyRegister:
        backend = RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path)))
        return backend.register("me")

    used = register()
    for turn, count in enumerate((3, versions)):
        server.records.clear()
        for number in range(count):
            assert register().commit(number, {"phase": "joining"})
        if turn == 0:
            assert used.read().number == 3
    with pytest.raises(StoreError, match="has lost the state of this run"):
        used.read()


def test_of_agents_that_create_a_run_at_once_the_slower_one_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    first, second = (
        RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path))).register(writer)
        for writer in ("a", "b")
    )
    compare_set = Connection.compare_set

    def overtaken(*request: Any) -> bool:
        monkeypatch.setattr(Connection, "compare_set", compare_set)
        assert first.commit(0, {"phase": "joining", "of": "a"})
        return compare_set(*request)

    monkeypatch.setattr(Connection, "compare_set", overtaken)
    assert not second.commit(0, {"phase": "joining", "of": "b"})
    assert second.read().value["of"] == "a"
    assert second.commit(1, {"phase": "joining"}) and first.read().number == 2


def test_a_server_that_was_restored_from_a_copy_is_recognized(tmp_path: Path) -> None:
    """It has as many versions again, of the same history, when this node looks."""
    server = Server()

    def backend() -> RecordsBackend:
        return RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path)))

    ours = backend()
    used, copy = ours.register("me"), {}
    for number in range(5):
        assert used.commit(number, {"phase": "joining"})
        if number == 2:
            copy = dict(server.records["run"])
    server.records["run"] = copy
    for number in (3, 4):
        assert backend().register("another").commit(number, {"phase": "joining"})
    with pytest.raises(StoreError, match="has lost the state of this run"):
        used.commit(5, {"phase": "joining"})


def test_the_registers_of_a_process_know_one_history(tmp_path: Path) -> None:
    server = Server()

    def backend() -> RecordsBackend:
        return RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path)))

    ours = backend()
    assert ours.register("me").commit(0, {"phase": "joining"})
    used = ours.register("me")
    used.assume(1)
    server.records.clear()
    for number in range(3):
        assert backend().register("another").commit(number, {"phase": "joining"})
    with pytest.raises(StoreError, match="has lost the state of this run"):
        used.read()


def test_a_run_whose_record_has_expired_goes_on_in_its_history(tmp_path: Path) -> None:
    """One agent has read the end before the server removed it, and another one reopens the run."""
    server = Server()

    def backend() -> RecordsBackend:
        return RecordsBackend("server", Connection(server, "run"), StateCopies(RunPaths(tmp_path)))

    RunPaths(tmp_path).known.parent.mkdir()
    first, second = backend().register("a"), backend().register("b")
    for number, phase in enumerate(("joining", "running", "succeeded")):
        assert first.commit(number, {"phase": phase})
    assert second.read().number == 3
    server.records.clear()
    assert backend().register("c").commit(3, {"phase": "joining"})
    assert second.read().number == first.read().number == 4


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"version": 7}'])
def test_a_damaged_copy_of_the_newest_state_counts_as_none(content: str, tmp_path: Path) -> None:
    """It is written without a wait for the disk."""
    paths = RunPaths(tmp_path)
    copies = StateCopies(paths)
    paths.newest.parent.mkdir(parents=True, exist_ok=True)
    paths.newest.write_text(content)
    assert copies.read() is None
    register = RecordsBackend("server", Connection(Server(), "run"), copies).register("me")
    assert register.read().number == 0 and register.commit(0, {"phase": "joining"})


def test_a_register_accepts_versions_without_a_history(tmp_path: Path) -> None:
    server = Server()
    connection = Connection(server, "run")
    register = RecordsBackend("server", connection, StateCopies(RunPaths(tmp_path))).register("me")
    connection.set("state", json.dumps({"version": 4, "nonce": "ab", "value": {"phase": "joining"}}))
    assert register.read().number == 4
    assert register.commit(4, {"phase": "joining"})
    assert register.read().number == 5


def test_a_node_reports_that_the_server_has_lost_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = servers_of_every_backend(monkeypatch)
    world = make_world(tmp_path / "run", 1, 2, backend="theirs", endpoint="here:1")
    job = {"job": "7.0", "job_nodes": 2}
    a, b = world.node("a", order=0, **job), world.node("b", order=1, **job)
    assert turns(a, b).phase is Phase.RUNNING
    for _ in range(3):
        steer_run(world.backend, "user", request_stacks)
    assert b.step().state.stacks == 3
    servers["here:1"].records.clear()
    open_run(world.backend, "run", world.settings, "the agent that serves now")
    with pytest.raises(StoreError, match="has lost the state of this run: it holds version 1"):
        b.step()
