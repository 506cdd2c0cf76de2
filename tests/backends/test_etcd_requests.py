"""Endpoints of etcd clusters, and members that do not answer as they should."""

import contextlib
import io
import secrets
import socket
import threading
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.backends.etcd import EtcdV2, EtcdV3, connect, connect_v2
from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.backends.records import RecordsBackend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.state import NodeState
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import eventually
from tests.protocol.builders import member

Connect = Callable[[str, str, bool], EtcdV2 | EtcdV3]


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The address of a member that sends ``reply`` and closes the connection, for each request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("version", [connect, connect_v2])
@pytest.mark.parametrize("status", ["503 Service Unavailable", "404 Not Found"])
def test_an_error_whose_text_is_cut_off_is_an_error_of_the_server(status: str, version: Connect) -> None:
    reply = f'HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n{{"err'.encode()
    error = f"does not answer: HTTP Error {status[:3]}"
    with answering(reply) as endpoint, pytest.raises(StoreError, match=error):
        version(endpoint, "run", True).get("state")


def test_spaces_around_the_members_of_an_endpoint_are_ignored(etcd: EtcdServer) -> None:
    for endpoint in (f" {etcd.endpoint}", f"127.0.0.1:1, {etcd.endpoint} "):
        assert connect(endpoint, "no-such-run", True).get("state") is None


@pytest.mark.parametrize("endpoint", ["[::1", "http://[::1:2379", "n1:2379,", "n1:x"])
def test_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT of an etcd server"):
        connect(endpoint, "run", True)


class Answer(io.BytesIO):
    status = 200


class Members:
    """Members n1 to n3 of a cluster. Those that are ``down`` do not answer. Number ``first`` is drawn by lot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, down: Collection[str] = (), first: int = 0) -> None:
        self._down = down
        self.requests: list[tuple[str, float]] = []
        """The member and the time-out of each request."""

        self.meanwhile: list[Callable[[], object]] = []
        """What another thread does during the next request."""

        monkeypatch.setattr("random.randrange", lambda count: first)
        self.records = connect("n1,n2,n3", "run", True)
        monkeypatch.setattr(self.records._server, "_opener", self)

    def open(self, request: urllib.request.Request, timeout: float) -> Answer:
        name = request.host.partition(":")[0]
        self.requests.append((name, timeout))
        if self.meanwhile:
            self.meanwhile.pop()()
        if name in self._down:
            raise TimeoutError("timed out")
        return Answer(b"{}")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.requests]


def test_a_member_that_hangs_is_left_soon_if_another_one_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch, down=("n1", "n2", "n3"))
    with pytest.raises(StoreError, match="does not answer: timed out"):
        members.records.get("state")
    assert members.requests == [("n1", 0.5), ("n2", 0.5), ("n3", 5.0)]


def test_the_first_member_gets_all_the_time_for_a_change_that_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch, down=("n1", "n2", "n3"))
    with pytest.raises(StoreError, match="does not answer: timed out"):
        members.records.compare_set("state", None, "x")
    assert members.requests == [("n1", 5.0)]


@pytest.mark.parametrize("version", [connect, connect_v2], ids=["version 3", "version 2"])
def test_a_record_is_not_set_back_by_a_request_that_a_member_executes_late(
    version: Connect, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, sent = version(etcd.endpoint, secrets.token_hex(6), True), list[tuple[Any, ...]]()
    send = records._server.send

    def recorded(*request: Any, **more: Any) -> Any:
        sent.append(request)
        return send(*request, **more)

    for text in ("1", "2", "3"):
        with monkeypatch.context() as patch:
            patch.setattr(records._server, "send", recorded)
            records.set("nodes/a", text)
    assert len(sent) == 3, "each takes one request"
    for request in sent[:2]:
        send(*request)
    assert records.all("nodes/") == {"nodes/a": "3"}
    send(*sent[2])  # executed twice, once before its answer was lost
    records._tokens.clear()
    records.set("nodes/a", "3")
    records.expire({"nodes/a": None}, 60.0)
    records.set("nodes/a", "4")
    assert records.all("nodes/") == {"nodes/a": "4"}


@pytest.mark.parametrize("version", [connect, connect_v2], ids=["version 3", "version 2"])
def test_the_leases_of_agents_that_have_ended_are_removed(version: Connect, etcd: EtcdServer, tmp_path: Path) -> None:
    records = version(etcd.endpoint, secrets.token_hex(6), True)
    backend = RecordsBackend("etcd", records, StateCopies(RunPaths(tmp_path)))
    leases = {name: backend.lease(f"{name}@0") for name in "abc"}
    for name, lease in leases.items():
        lease.renew(member(name, NodeState.READY, 0))
    backend.remove_leases(["a@0", "b@0", "x@0"])
    assert backend.leases().keys() == {"c@0"}
    leases["b"].renew(member("b", NodeState.READY, 0))
    assert backend.leases().keys() == {"b@0", "c@0"}, "it is alive after all"


def test_two_threads_that_leave_a_member_go_to_the_same_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch, down=("n1",))
    members.meanwhile.append(lambda: members.records.get("state"))
    for _ in range(2):
        assert members.records.get("state") is None
    assert members.names == ["n1", "n1", "n2", "n2", "n2"]


def test_processes_begin_with_different_members(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for first in range(3):
        members = Members(monkeypatch, ("n1", "n2", "n3"), first)
        with contextlib.suppress(StoreError):
            members.records.get("state")
        orders.append(members.names)
    assert orders == [["n1", "n2", "n3"], ["n2", "n3", "n1"], ["n3", "n1", "n2"]]


@pytest.mark.parametrize("version", [connect, connect_v2], ids=["version 3", "version 2"])
def test_records_expire_although_others_were_deleted_or_changed(version: Connect, etcd: EtcdServer) -> None:
    records = version(etcd.endpoint, secrets.token_hex(6), True)
    for key in ("state", "nodes/a", "nodes/b", "nodes/deleted", "nodes/changed"):
        records.set(key, "1")
    tokens = {key: record.token for key in ("state", "nodes/changed") if (record := records.get(key))}
    records.delete("nodes/deleted")
    records.set("nodes/changed", "2")
    leases = dict.fromkeys(("nodes/deleted", *(f"nodes/none{i}" for i in range(200)), "nodes/a", "nodes/b"))
    records.expire({**leases, **tokens}, 1.0)
    eventually(lambda: records.get("state") is None and records.all("nodes/") == {"nodes/changed": "2"})
