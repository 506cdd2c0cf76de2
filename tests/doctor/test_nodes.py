"""Findings about the nodes of an allocation, and the checks behind them."""

import socket
import threading
from dataclasses import replace

import pytest

from hpcelastic.doctor.names import Lookup, look_up
from hpcelastic.doctor.node_report import NodeReport
from hpcelastic.doctor.nodes import judge_nodes
from hpcelastic.doctor.reachability import EchoAddress, EchoServer, Reachability, check_reachability, peers
from hpcelastic.doctor.verdict import Severity
from hpcelastic.health.finding import CheckFinding

OK, WARNING, BAD = Severity.OK, Severity.WARNING, Severity.BAD


def node(rank: int, **changes: object) -> NodeReport:
    """Return one of three nodes without faults."""
    name, address = f"n{rank + 1}", f"10.0.0.{rank + 1}"
    reachability = tuple(Reachability(other) for other in range(3) if other != rank)
    sound = NodeReport(name, address, "eth0", "by the default route", Lookup(name, (address,)), False, (), reachability)
    return replace(sound, **changes)  # type: ignore[arg-type]  # its fields


def unreachable(rank: int, *to: int, tcp: str = "timed out", udp: str = "no answer") -> tuple[Reachability, ...]:
    return tuple(
        Reachability(other, tcp, udp) if other in to else Reachability(other) for other in range(3) if other != rank
    )


SOUND = (node(0), node(1), node(2))
N3_CUT = (
    node(0, reachability=unreachable(0, 2)),
    node(1, reachability=unreachable(1, 2)),
    node(2, reachability=unreachable(2, 0, 1)),
)
BENT = (
    CheckFinding("GPUs", "one of 2 answers", "drain it"),
    CheckFinding("clock", "is ahead", "check it", bad=False),
)

CASES = {
    "sound": (SOUND, []),
    "cut": (N3_CUT, [("ports", BAD, "n3: no TCP connection to or from any other node")]),
    "one way": (
        (node(0, reachability=unreachable(0, 1)), *SOUND[1:]),
        [("ports", BAD, "n1 cannot connect to n2 by TCP: timed out")],
    ),
    "no UDP": (
        (node(0, reachability=unreachable(0, 1, tcp="")), *SOUND[1:]),
        [("ports", WARNING, "no answer by UDP: n1 to n2")],
    ),
    "no name": (
        (node(0, lookup=Lookup("n1", (), "Name or service not known")), *SOUND[1:]),
        [("host names", BAD, "n1 cannot resolve its own host name, n1: Name or service not known")],
    ),
    "no name, but gloo needs none": (
        (node(0, lookup=Lookup("n1", (), "Name or service not known"), gloo_interface_set=True), *SOUND[1:]),
        [("host names", WARNING, "n1 cannot resolve its own host name, n1: Name or service not known")],
    ),
    "a name that resolves to loopback": (
        (node(0, lookup=Lookup("n1", ("127.0.1.1",))), *SOUND[1:]),
        [("host names", BAD, "n1 resolves its own host name to 127.0.1.1, which other nodes cannot reach")],
    ),
    "slow names": (
        (node(0, lookup=Lookup("n1", ("10.0.0.1",), "", 0.1, 20.0)), *SOUND[1:]),
        [("host names", WARNING, "n1: the look-up of its host name took 0.1 s, of its address 20 s")],
    ),
    "clock": (
        (SOUND[0], node(1, skew=-90.0), SOUND[2]),
        [("clocks", WARNING, "the clock of n2 is 90 s behind that of n1")],
    ),
    "loopback": (
        (node(0, address="127.0.0.1"), *SOUND[1:]),
        [("network", BAD, "n1 has only the loopback address 127.0.0.1, which other nodes cannot reach")],
    ),
    "broken": (
        (SOUND[0], node(1, findings=BENT), SOUND[2]),
        [("GPUs", BAD, "n2: one of 2 answers"), ("clock", WARNING, "n2: is ahead")],
    ),
    "alone": (
        (node(0, reachability=(), lookup=Lookup("n1", (), "no name")),),
        [("host names", WARNING, "n1 cannot resolve")],
    ),
}


@pytest.mark.parametrize(("node_report", "expected"), CASES.values(), ids=CASES)
def test_findings_about_the_nodes(
    node_report: tuple[NodeReport, ...], expected: list[tuple[str, Severity, str]]
) -> None:
    found = [(one.check, one.severity, one.result) for one in judge_nodes(node_report) if one.severity is not OK]
    assert [(check, severity) for check, severity, _ in found] == [row[:2] for row in expected]
    assert all(result.startswith(row[2]) for (_, _, result), row in zip(found, expected, strict=True)), found


def test_nodes_without_faults_have_a_finding_for_each_check() -> None:
    assert [one.check for one in judge_nodes(SOUND)] == ["network", "host names", "ports", "clocks", "node check"]


@pytest.mark.parametrize("count", [2, 16, 17, 1000])
def test_every_node_is_tested_from_another_one_and_the_first_from_all(count: int) -> None:
    ways = {(rank, other) for rank in range(count) for other in peers(rank, count)}
    assert {target for _, target in ways} == set(range(count))
    assert {source for source, target in ways if target == 0} == set(range(1, count))
    assert len(ways) <= max(count * (count - 1) if count <= 16 else 0, 4 * count)


def test_a_probe_server_answers_until_it_is_closed() -> None:
    server = EchoServer("127.0.0.1")
    assert check_reachability({4: server.address}, [4], b"word") == [Reachability(4)]
    assert check_reachability({4: server.address}, [4], b"again") == [Reachability(4)]
    server.close()
    (after,) = check_reachability({4: server.address}, [4], b"word")
    assert after.tcp == "Connection refused" and after.udp == "Connection refused"


def test_an_echo_server_has_one_of_the_given_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"no port is free; network.ports is {number}-{number}"):
            EchoServer("127.0.0.1", range(number, number + 1))
    server = EchoServer("127.0.0.1", range(number, number + 1))
    assert server.address == EchoAddress("127.0.0.1", number, number)
    server.close()


@pytest.mark.parametrize(
    ("error", "severity", "text"),
    [
        ("", Severity.OK, "gloo and NCCL can use the ports of the kernel (32768-60999)"),
        ("timed out", Severity.BAD, "no connection by TCP at ports that the kernel chooses (32768-60999): n1 to n2"),
    ],
)
def test_the_ports_of_workers_are_examined_if_those_of_agents_are_limited(
    error: str, severity: Severity, text: str
) -> None:
    kernel = {"kernel_ports": "32768-60999"}
    reports = (node(0, worker_reachability=(Reachability(1, error, error),), **kernel), node(1, **kernel))
    (found,) = [one for one in judge_nodes(reports) if one.check == "ports of workers"]
    assert (found.severity, found.result) == (severity, text)


def test_the_ports_of_workers_may_be_at_another_interface() -> None:
    reports = [node(rank, worker_reachability=(Reachability(1 - rank),), gloo_interface_set=True) for rank in (0, 1)]
    (found,) = [one for one in judge_nodes(reports) if one.check == "ports of workers"]
    assert found.result == "gloo and NCCL can use the ports of the kernel () at the interface of GLOO_SOCKET_IFNAME"


def test_another_answer_is_from_another_program() -> None:
    with Listener() as other:
        (found,) = check_reachability({0: other}, [0], b"word")
    assert found.tcp == "another program answers"


class Listener:
    """A port of another program, which sends a greeting."""

    def __enter__(self) -> EchoAddress:
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        threading.Thread(target=lambda: self._socket.accept()[0].sendall(b"hello"), daemon=True).start()
        return EchoAddress("127.0.0.1", port, port)

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_an_unknown_name_has_an_error_message() -> None:
    found = look_up("no-such-host.invalid", "127.0.0.1")
    assert found.addresses == () and found.error
    assert look_up("localhost", "127.0.0.1").loopback


def test_a_name_that_dns_does_not_allow_has_an_error_message() -> None:
    found = look_up("n" * 64, "127.0.0.1")
    assert found.addresses == () and "too long" in found.error
