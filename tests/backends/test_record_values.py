"""Keys and values in the records of an etcd server: names, lifetimes, and replies that are lost.

Their operations are tested as those of a store of torch in `tests.pytorch.test_etcd_store`, and on concurrent processes
in `tests.linearizability`.
"""

import http.server
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcelastic.backends.etcd import EtcdV2, EtcdV3
from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.backends.record_values import RecordValues
from hpcelastic.backends.records import RecordsBackend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import StoreError
from hpcelastic.storage.keyvalue import MAX_VALUE
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import eventually

Version = type[EtcdV2] | type[EtcdV3]


@pytest.fixture(params=[EtcdV3, EtcdV2])
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
def prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def values(version: Version, prefix: str, etcd: EtcdServer) -> RecordValues:
    return RecordValues(version(etcd.endpoint, "store", prefix), "values")


@pytest.mark.parametrize("key", ["", "a", "a/b/../c", "_hidden", "%2F", "ä b", "\udcff", "x" * 2000])
def test_every_key_is_one_of_its_own(values: RecordValues, key: str) -> None:
    values.set("other", "0")
    values.set(key, "1")
    assert values.get(key) == "1"
    assert values.keys() == sorted([key, "other"])
    assert values.delete(key) and values.keys() == ["other"]


def test_the_largest_values_are_kept_and_listed(values: RecordValues) -> None:
    for key in "abcde":
        values.set(key, "x" * MAX_VALUE)
    assert values.get("e") == "x" * MAX_VALUE
    assert values.missing(["a", "b", "z"]) == ["z"]


def test_folders_of_one_store_are_apart(version: Version, prefix: str, etcd: EtcdServer) -> None:
    records = version(etcd.endpoint, "store", prefix)
    one, other = RecordValues(records, "values"), RecordValues(records, "queues")
    one.set("a", "1")
    assert other.get("a") is None and other.keys() == []


@pytest.mark.parametrize("value", ["", "a", "\udcff\x00ü", "null"])
def test_a_value_is_returned_as_it_was_set(values: RecordValues, value: str) -> None:
    values.set("a", value)
    assert values.get("a") == value
    assert values.compare_set("a", value, "b") == "b"
    assert values.compare_set("b", None, value) == value


def test_what_is_no_value_is_an_error(version: Version, prefix: str, etcd: EtcdServer) -> None:
    records = version(etcd.endpoint, "store", prefix)
    records.set("values/ka", "no base64!")
    with pytest.raises(StoreError, match="holds 'no base64!', which is not a value of the store"):
        RecordValues(records, "values").get("a")


# Lifetimes


@pytest.mark.slow
def test_records_end_together_once_nobody_keeps_them(version: Version, prefix: str, etcd: EtcdServer) -> None:
    records = version(etcd.endpoint, "store", prefix, ttl=5)
    records.keep()
    values = RecordValues(records, "values")
    values.set("old", "1")
    values.add("n", 1)
    for _ in range(8):
        time.sleep(1)
        records.keep()
    values.set("new", "1")
    assert values.keys() == ["n", "new", "old"]
    if isinstance(records, EtcdV3) or records._can_renew():
        eventually(lambda: values.keys() == [])
    else:  # etcd 3.5
        time.sleep(7)
        assert values.keys() == ["n", "new", "old"]


def test_a_server_that_cannot_renew_a_directory_is_recognized(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records, requests = EtcdV2("127.0.0.1:1", "store", prefix, ttl=5), []

    def answer(method: str, path: str, data: bytes, kind: str, *, once: bool = False) -> tuple[int, object]:
        requests.append((method, data))
        if data.endswith(b"true"):
            return 500, {"errorCode": 300, "message": "Raft Internal Error", "cause": "nodePath /1/t : Not a file ()"}
        return 201, {"action": "create"}

    monkeypatch.setattr(records._server, "send", answer)
    records.keep()
    records.keep()
    assert requests == [("PUT", b"dir=true&ttl=10&prevExist=false"), ("PUT", b"dir=true&ttl=10&prevExist=true")]


def test_records_without_a_time_to_live_have_none(version: Version, prefix: str, etcd: EtcdServer) -> None:
    values = RecordValues(version(etcd.endpoint, "store", prefix), "values")
    values.set("a", "1")
    values.add("n", 1)
    other = version(etcd.endpoint, "store", prefix, ttl=1000)
    if isinstance(other, EtcdV3):
        found = other._request("kv/range", {"key": other._key("values/kn")})["kvs"]
        assert "lease" not in found[0]
    else:
        assert "ttl" not in other._node("")


def test_a_store_whose_lease_was_lost_goes_on(prefix: str, etcd: EtcdServer) -> None:
    """As after a time in which no process could reach the server."""
    records = EtcdV3(etcd.endpoint, "store", prefix, ttl=1000)
    records.keep()
    values = RecordValues(records, "values")
    values.set("a", "1")
    records._request("lease/revoke", {"ID": records._lease["lease"]})
    assert values.get("a") is None
    assert values.add("n", 2) == 2
    values.set("a", "2")
    assert values.keys() == ["a", "n"]


def test_two_may_begin_to_keep_at_once(version: Version, prefix: str, etcd: EtcdServer) -> None:
    one, other = (version(etcd.endpoint, "store", prefix, ttl=1000) for _ in range(2))
    start = threading.Barrier(2)

    def keep(records: EtcdV2 | EtcdV3) -> None:
        start.wait()
        records.keep()
        RecordValues(records, "values").add("n", 1)

    threads = [threading.Thread(target=keep, args=(records,)) for records in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert RecordValues(one, "values").get("n") == "2"


# Lost replies


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests go to the first member of an endpoint."""
    monkeypatch.setattr("random.randrange", lambda count: 0)


@contextmanager
def losing_replies(endpoint: str, lose: Callable[[str, str], bool]) -> Iterator[str]:
    """The address of a member that passes on each request, and drops the connection in place of some replies."""

    class Member(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"Content-Type": self.headers.get("Content-Type", "")}
            request = urllib.request.Request(
                f"http://{endpoint}{self.path}", body or None, headers, method=self.command
            )
            try:
                with urllib.request.urlopen(request) as answer:
                    status, content = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            if not lose(self.command, self.path):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Member) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def changes(method: str, path: str) -> bool:
    return method in ("PUT", "DELETE") or path.endswith(("/kv/txn", "/kv/deleterange"))


@pytest.mark.usefixtures("in_order")
def test_a_change_whose_reply_is_lost_is_not_made_again(version: Version, prefix: str, etcd: EtcdServer) -> None:
    """The next member would find the changed value, and add to it."""
    direct = RecordValues(version(etcd.endpoint, "store", prefix), "values")
    direct.set("n", "5")
    changes_of = (lambda v: v.set("n", "6"), lambda v: v.add("n", 1), lambda v: v.delete("n"))
    for change, expected in zip(changes_of, ("6", "7", None), strict=True):
        with losing_replies(etcd.endpoint, changes) as member:
            values = RecordValues(version(f"{member},{etcd.endpoint}", "store", prefix), "values")
            with pytest.raises(StoreError, match="does not answer"):
                change(values)
        assert direct.get("n") == expected


@pytest.mark.usefixtures("in_order")
def test_other_requests_go_to_the_next_member(version: Version, prefix: str, etcd: EtcdServer) -> None:
    with losing_replies(etcd.endpoint, lambda method, path: not changes(method, path)) as member:
        values = RecordValues(version(f"{member},{etcd.endpoint}", "store", prefix), "values")
        assert values.get("n") is None
    assert values.add("n", 1) == 1, "a member that refuses connections has received nothing"


@pytest.mark.usefixtures("in_order")
def test_a_commit_whose_reply_is_lost_is_recognised(
    version: Version, prefix: str, etcd: EtcdServer, tmp_path: Path
) -> None:
    copies = StateCopies(RunPaths(tmp_path))
    with losing_replies(etcd.endpoint, changes) as member:
        records = version(f"{member},{etcd.endpoint}", "run", prefix)
        assert RecordsBackend("etcd", records, copies).register("me").commit(0, {"phase": "joining"})
