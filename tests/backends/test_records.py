"""The format of leases in the records of a server, and a server that loses its records."""

import json
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from hpcelastic.backends.backend import AnyRegister
from hpcelastic.backends.records import Records, RecordsBackend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.decide import request_stacks
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
