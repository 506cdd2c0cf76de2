"""What is thought of the nodes of an allocation, and how they are tried."""

import socket
import threading
from dataclasses import replace

import pytest

from hpcelastic.doctor.names import Lookup, look_up
from hpcelastic.doctor.nodes import judge_nodes
from hpcelastic.doctor.reach import Address, Door, Knock, knock, peers
from hpcelastic.doctor.stock import Stock
from hpcelastic.doctor.verdict import Severity
from hpcelastic.health.finding import Finding

FINE, WARNING, BAD = Severity.FINE, Severity.WARNING, Severity.BAD


def node(rank: int, **changes: object) -> Stock:
    """One of three sound nodes."""
    name, address = f"n{rank + 1}", f"10.0.0.{rank + 1}"
    knocks = tuple(Knock(other) for other in range(3) if other != rank)
    sound = Stock(name, address, "eth0", "by the default route", Lookup(name, (address,)), False, (), knocks)
    return replace(sound, **changes)  # type: ignore[arg-type]  # its fields


def deaf(rank: int, *to: int, tcp: str = "timed out", udp: str = "no answer") -> tuple[Knock, ...]:
    return tuple(Knock(other, tcp, udp) if other in to else Knock(other) for other in range(3) if other != rank)


SOUND = (node(0), node(1), node(2))
N3_CUT = (node(0, knocks=deaf(0, 2)), node(1, knocks=deaf(1, 2)), node(2, knocks=deaf(2, 0, 1)))
BENT = (Finding("GPUs", "one of 2 answers", "drain it"), Finding("clock", "is ahead", "check it", bad=False))

CASES = {
    "sound": (SOUND, []),
    "cut": (N3_CUT, [("ports", BAD, "n3 reaches no other node by TCP, and is reached by none")]),
    "one way": (
        (node(0, knocks=deaf(0, 1)), *SOUND[1:]),
        [("ports", BAD, "n1 does not reach n2 by TCP: timed out")],
    ),
    "no UDP": (
        (node(0, knocks=deaf(0, 1, tcp="")), *SOUND[1:]),
        [("ports", WARNING, "no UDP from n1 to n2")],
    ),
    "no name": (
        (node(0, lookup=Lookup("n1", (), "Name or service not known")), *SOUND[1:]),
        [("names", BAD, "n1 cannot resolve its own name, n1: Name or service not known")],
    ),
    "no name, but gloo needs none": (
        (node(0, lookup=Lookup("n1", (), "Name or service not known"), gloo_told=True), *SOUND[1:]),
        [("names", WARNING, "n1 cannot resolve its own name, n1: Name or service not known")],
    ),
    "a name for itself alone": (
        (node(0, lookup=Lookup("n1", ("127.0.1.1",))), *SOUND[1:]),
        [("names", BAD, "n1 resolves its own name to 127.0.1.1, which is no other's way to it")],
    ),
    "slow names": (
        (node(0, lookup=Lookup("n1", ("10.0.0.1",), "", 0.1, 20.0)), *SOUND[1:]),
        [("names", WARNING, "n1: its name took 0.1 s, its address 20 s to look up")],
    ),
    "clock": ((SOUND[0], node(1, skew=-90.0), SOUND[2]), [("clocks", WARNING, "n2 is 90 s behind n1")]),
    "loopback": (
        (node(0, address="127.0.0.1"), *SOUND[1:]),
        [("network", BAD, "n1 has only 127.0.0.1, at which no other node can reach it")],
    ),
    "broken": (
        (SOUND[0], node(1, findings=BENT), SOUND[2]),
        [("GPUs", BAD, "n2: one of 2 answers"), ("clock", WARNING, "n2: is ahead")],
    ),
    "alone": ((node(0, knocks=(), lookup=Lookup("n1", (), "no name")),), [("names", WARNING, "n1 cannot resolve")]),
}


@pytest.mark.parametrize(("stock", "expected"), CASES.values(), ids=CASES)
def test_what_is_wrong_with_the_nodes(stock: tuple[Stock, ...], expected: list[tuple[str, Severity, str]]) -> None:
    found = [(one.check, one.severity, one.result) for one in judge_nodes(stock) if one.severity is not FINE]
    assert [(check, severity) for check, severity, _ in found] == [row[:2] for row in expected]
    assert all(result.startswith(row[2]) for (_, _, result), row in zip(found, expected, strict=True)), found


def test_each_check_of_sound_nodes_is_told() -> None:
    assert [one.check for one in judge_nodes(SOUND)] == ["network", "names", "ports", "clocks", "node check"]


@pytest.mark.parametrize("count", [2, 16, 17, 1000])
def test_every_node_is_tried_from_some_other_and_the_first_from_all(count: int) -> None:
    ways = {(rank, other) for rank in range(count) for other in peers(rank, count)}
    assert {target for _, target in ways} == set(range(count))
    assert {source for source, target in ways if target == 0} == set(range(1, count))
    assert len(ways) <= max(count * (count - 1) if count <= 16 else 0, 4 * count)


def test_a_door_answers_until_it_is_closed() -> None:
    door = Door("127.0.0.1")
    assert knock({4: door.at}, [4], b"word") == [Knock(4)]
    assert knock({4: door.at}, [4], b"again") == [Knock(4)]
    door.close()
    (after,) = knock({4: door.at}, [4], b"word")
    assert after.tcp == "Connection refused" and after.udp == "Connection refused"


def test_who_answers_with_another_word_is_somebody_else() -> None:
    with Listener() as other:
        (found,) = knock({0: other}, [0], b"word")
    assert found.tcp == "somebody else answers"


class Listener:
    """A stranger's port, which greets whoever comes."""

    def __enter__(self) -> Address:
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        threading.Thread(target=lambda: self._socket.accept()[0].sendall(b"hello"), daemon=True).start()
        return Address("127.0.0.1", port, port)

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_a_name_that_nobody_knows_is_an_error_in_words() -> None:
    found = look_up("no-such-host.invalid", "127.0.0.1")
    assert found.addresses == () and found.error
    assert look_up("localhost", "127.0.0.1").loopback
