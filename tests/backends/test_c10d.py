"""Endpoints of torch's stores."""

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.pytorch import c10d
from hpcelastic.pytorch.c10d import StoreRecords, _is_local, _parse_endpoint, connect
from tests.users import OUTSIDER, as_user


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("n1:29411", "n1", 29411),
        ("n1", "n1", 29400),
        ("[fd00::1]:7", "fd00::1", 7),
        ("[fd00::1]", "fd00::1", 29400),
        ("fd00::1", "fd00::1", 29400),
        ("::1", "::1", 29400),
        ("fd00::1:29411", "fd00::1", 29411),
    ],
)
def test_an_endpoint(endpoint: str, host: str, port: int) -> None:
    assert _parse_endpoint(endpoint) == (host, port)


@pytest.mark.parametrize("endpoint", ["n1:", ":7", "n1:0", "n1:65536", "n1:x"])
def test_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        connect(endpoint, "r", True)


@pytest.mark.parametrize("path", [".", "no-such-directory/store"])
def test_no_file_for_a_store(path: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="name a file in a directory that exists on this node"):
        connect(f"file:{tmp_path / path}", "r", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
@pytest.mark.parametrize(
    ("path", "agent", "problem"),
    [
        ("store", True, "can't be used as a store of torch"),
        ("store", False, "no agent has created this store"),
        ("directory/store", True, "name a file in a directory that exists on this node"),
    ],
)
def test_no_file_for_a_store_in_a_directory_that_the_user_may_not_enter(path: str, agent: bool, problem: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        locked = Path(directory) / "locked"
        (locked / "directory").mkdir(parents=True)
        os.chmod(directory, 0o711)
        locked.chmod(0)
        answer = as_user(OUTSIDER, lambda: connect(f"file:{locked / path}", "r", agent))
    assert answer["error"].startswith("StoreError: ") and problem in answer["error"]


def test_a_file_that_no_store_can_use_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"/proc/version: can't be used as a store of torch"):
        connect("file:/proc/version", "r", True)


def test_a_reader_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no agent has created this store"):
        connect(f"file:{tmp_path / 'store'}", "r", False)
    connect(f"file:{tmp_path / 'store'}", "r", True).set("a", "1")
    assert connect(f"file:{tmp_path / 'store'}", "r", False).all("") == {"a": "1"}


def test_this_machine() -> None:
    assert _is_local("localhost") and _is_local("127.0.0.1")
    assert not _is_local("192.0.2.77") and not _is_local("no-such-host.invalid")


def test_a_reader_serves_nothing_and_does_not_wait() -> None:
    with pytest.raises(StoreError, match="no agent serves the store there"):
        connect("127.0.0.1:1", "r", False)


@pytest.mark.parametrize(
    ("host", "is_host", "served"),
    [("127.0.0.1", None, True), ("192.0.2.77", None, False), ("192.0.2.77", True, True), ("127.0.0.1", False, False)],
)
def test_the_agent_that_serves(host: str, is_host: bool | None, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def tcp_store(host: str, port: int, *, is_server: bool, wait: timedelta) -> HashStore:
        calls.append(is_server)
        return HashStore()

    monkeypatch.setattr(c10d, "_tcp_store", tcp_store)
    monkeypatch.setattr(c10d, "_check_server", lambda host, port, limit: None)
    connect(f"{host}:29400", "r", True, is_host=is_host)
    assert calls == [served]


def test_an_unresolvable_name_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(c10d, "_SERVER_TIMEOUT", timedelta(seconds=0.5))
    with pytest.raises(StoreError, match="no agent serves the store there"):
        connect("no-such-host.invalid:29400", "r", True)
    assert capsys.readouterr().err.count("no-such-host.invalid does not resolve (") == 1


def test_an_agent_reports_that_it_waits_for_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(c10d, "_MESSAGE_DELAY", 0.0)
    monkeypatch.setattr(c10d, "_SERVER_TIMEOUT", timedelta(seconds=0.5))
    with pytest.raises(StoreError, match="no agent serves the store there"):
        connect("127.0.0.1:1", "r", True, is_host=False)
    assert "for the store at 127.0.0.1:1, which the agent on 127.0.0.1 serves" in capsys.readouterr().err


def test_the_records_of_a_large_run_are_read_in_a_few_requests() -> None:
    class CountingStore(HashStore):
        requests = 0

        def get(self, key: str) -> bytes:
            self.requests += 1
            return super().get(key)

    store = CountingStore()
    records = StoreRecords(store, "r", agent=False)
    expected = {f"nodes/{number}": "free" for number in range(100)}
    for key in expected:
        records.set(key, "free")
    records.set("state", "running")
    store.requests = 0
    assert records.all("nodes/") == expected
    assert records.all("leases/") == {}
    assert store.requests == 2, "of the list of keys"


class Forwarder:
    """A port of this machine that forwards each connection to ``port``, until `cut` ends them all."""

    def __init__(self, port: int) -> None:
        self._target, self._ends = port, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += (near, far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_is_cut_is_made_again() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    forwarder = Forwarder(server.port)
    records = connect(f"127.0.0.1:{forwarder.port}", "r", True, is_host=False)
    records.set("a", "1")
    forwarder.cut()
    with pytest.raises(StoreError, match="torch's store does not answer"):
        records.all("")
    assert records.all("") == {"a": "1"}
    assert records.compare_set("a", "1", "2")
    del server


class EndedStore(HashStore):
    """A store that does not answer once it has ``ended``."""

    ended = False

    def check(self, keys: list[str]) -> bool:
        if self.ended:
            raise RuntimeError("Broken pipe")
        return super().check(keys)


def test_keys_are_listed_by_the_store_that_has_replaced_another() -> None:
    first, second = EndedStore(), HashStore()
    records = StoreRecords(first, "r", agent=False, reconnect=lambda: second)
    records.set("a", "1")
    first.ended = True
    with pytest.raises(StoreError, match="torch's store does not answer"):
        records.get("a")
    records.set("a", "2")
    assert records.all("") == {"a": "2"}


def test_an_error_of_an_old_connection_does_not_break_a_new_one() -> None:
    """Another thread has waited for an answer on the old one."""
    waits, ends = threading.Event(), threading.Event()

    class FailingStore(HashStore):
        def check(self, keys: list[str]) -> bool:
            if keys[0].endswith("slow"):
                waits.set()
                ends.wait()
            raise RuntimeError("Broken pipe")

    connections = [HashStore()]
    records = StoreRecords(FailingStore(), "r", agent=False, reconnect=connections.pop)

    def wait() -> None:
        with pytest.raises(StoreError, match="Broken pipe"):
            records.get("slow")

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    with pytest.raises(StoreError, match="Broken pipe"):
        records.get("a")
    records.set("a", "1")
    ends.set()
    thread.join()
    assert records.all("") == {"a": "1"}


class HangingStore(HashStore):
    """A store whose server hangs."""

    def __init__(self, answers: threading.Event) -> None:
        super().__init__()
        self.answers = answers

    def check(self, keys: list[str]) -> bool:
        self.answers.wait()
        return super().check(keys)

    def add(self, key: str, amount: int) -> int:
        self.answers.wait()
        return super().add(key, amount)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingStore]:
    monkeypatch.setattr(c10d, "_STORE_TIMEOUT", timedelta(seconds=0.05))
    answers = threading.Event()
    yield HangingStore(answers)
    answers.set()


def test_a_store_that_hangs_is_an_error_and_is_connected_to_again(hanging: HangingStore) -> None:
    records = StoreRecords(hanging, "r", agent=False, reconnect=HashStore)
    with pytest.raises(StoreError, match=r"torch's store does not answer: no answer within 0\.05 s"):
        records.get("a")
    assert records.get("a") is None


def test_a_record_whose_first_write_has_hung_is_listed(hanging: HangingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """That write ends after another store has replaced the one that hung."""
    records = StoreRecords(hanging, "r", agent=False, reconnect=HashStore)
    with pytest.raises(StoreError, match="no answer within"):
        records.set("a", "1")
    monkeypatch.setattr(c10d, "_STORE_TIMEOUT", timedelta(seconds=10))
    assert records.get("a") is None
    hanging.answers.set()
    for thread in threading.enumerate():
        if thread.name == "torch's store":
            thread.join()
    records.set("a", "2")
    assert records.all("") == {"a": "2"}


def test_a_write_that_has_hung_does_not_replace_a_later_one(
    hanging: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that hung continues, and executes the requests of both connections."""
    server = HashStore()

    def compare_set(key: str, expected: str, text: str) -> bytes:
        hanging.answers.wait(10)
        return bytes(server.compare_set(key, expected, text))

    hanging.compare_set = compare_set  # type: ignore[method-assign]
    records = StoreRecords(server, "r", agent=False, reconnect=lambda: server)
    records.set("a", "1")
    records._connection.store = hanging
    with pytest.raises(StoreError, match="no answer within"):
        records.set("a", "2")
    monkeypatch.setattr(c10d, "_STORE_TIMEOUT", timedelta(seconds=10))
    records.set("a", "3")
    hanging.answers.set()
    for thread in threading.enumerate():
        if thread.name == "torch's store":
            thread.join()
    assert records.all("") == {"a": "3"}
    server.delete_key("hpcelastic/r/a")
    records.set("a", "4")
    assert records.all("") == {"a": "4"}


def test_a_store_without_another_connection_is_used_again_after_an_error() -> None:
    """The process itself serves it, or it is a file."""

    failures = [RuntimeError("timed out")]

    class FailingOnce(HashStore):
        def compare_set(self, key: str, expected: str, text: str) -> bytes:
            if failures:
                raise failures.pop()
            return bytes(super().compare_set(key, expected, text))

    records = StoreRecords(FailingOnce(), "r", agent=True, is_server=True)
    with pytest.raises(StoreError, match="does not answer: timed out"):
        records.set("a", "1")
    records.set("a", "2")
    assert records.all("") == {"a": "2"}


def test_a_store_that_hangs_can_be_closed(hanging: HangingStore) -> None:
    records = StoreRecords(HashStore(), "r", agent=True, is_server=True)
    records._connection.store = hanging
    records.close()


def test_a_connection_to_a_server_that_hangs_is_an_error(
    hanging: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c10d, "_check_server", lambda host, port, limit: None)
    monkeypatch.setattr(c10d, "_tcp_store", lambda *_, **__: hanging.check(["a"]))
    with pytest.raises(StoreError, match=r"the server there is not a store of torch \(no answer within 0\.05 s\)"):
        connect("127.0.0.1:1", "r", False)
