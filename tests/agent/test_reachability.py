"""Which peers of a node answer by TCP. A full queue of connections stands for a machine that does not answer."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from hpcelastic.agent import reachability
from hpcelastic.agent.reachability import unreached
from hpcelastic.protocol.state import Participant
from tests.ports import free_port

HERE = "127.0.0.1"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which no further connection is made, and none is refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HERE, 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def peers(port: int, first: int, count: int) -> list[Participant]:
    return [Participant(f"n{i}@1", 1, HERE, 1, port) for i in range(first, first + count)]


def test_the_peers_that_do_not_answer_are_named(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_TIMEOUT", 0.2)
    tried = peers(silent_port, 0, 3) + peers(free_port(), 3, 3) + peers(0, 6, 1)
    assert unreached(tried, HERE) == ["n0", "n1", "n2"]


def test_few_connections_are_tried_at_the_same_time(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_TIMEOUT", 0.05)
    monkeypatch.setattr(reachability, "_AT_ONCE", 8)
    monkeypatch.setattr(reachability, "_LAST_BEGIN", 600.0)
    made, most = list[socket.socket](), 0

    def connect(*arguments: object) -> tuple[socket.socket, int]:
        nonlocal most
        connection, result = original(*arguments)  # type: ignore[arg-type]
        made.append(connection)
        most = max(most, sum(each.fileno() >= 0 for each in made))
        return connection, result

    original = reachability.connect
    monkeypatch.setattr(reachability, "connect", connect)
    assert unreached(peers(silent_port, 0, 20) + peers(free_port(), 20, 20), HERE) == [f"n{i}" for i in range(20)]
    assert (len(made), most) == (40, 8)


def test_no_connection_begins_after_some_time(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_TIMEOUT", 0.05)
    monkeypatch.setattr(reachability, "_AT_ONCE", 8)
    monkeypatch.setattr(reachability, "_LAST_BEGIN", 0.0)
    assert len(unreached(peers(silent_port, 0, 20), HERE)) == 8
