"""Report of each node of an allocation: its address, host name, ports and clock, and its own health."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.doctor.coordination import Coordination
from hpcelastic.doctor.names import Lookup, look_up
from hpcelastic.doctor.reachability import EchoAddress, EchoServer, Reachability, check_reachability, peers
from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.health.checks import local_checks, run_all
from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.codec import decode, encode

_KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Source: ip(7)."""


@dataclass(frozen=True)
class LocalNode:
    """This node, as the caller knows it."""

    address: str
    interface: str
    reason: str
    """Why the other nodes reach it at that address."""

    environ: Mapping[str, str]
    """The environment in which workers would start."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    gloo_address: str = ""
    """The address of the interface that GLOO_SOCKET_IFNAME names; empty if it is not set."""


@dataclass(frozen=True)
class NodeReport:
    """The checks of one node: of the node itself, and of its connections to others."""

    node: str
    address: str
    interface: str
    reason: str
    lookup: Lookup
    gloo_interface_set: bool
    """True if GLOO_SOCKET_IFNAME is set, so that gloo does not resolve the node's name."""

    findings: tuple[CheckFinding, ...] = ()
    reachability: tuple[Reachability, ...] = ()
    """At the ports of `NetworkSettings.ports`, by default at ports that the kernel chooses."""

    worker_reachability: tuple[Reachability, ...] = ()
    """At ports that the kernel chooses, as gloo and NCCL let it do, and at the address of gloo. Empty if that is the
    same as `reachability`."""

    kernel_ports: str = ""
    """The ports from which the kernel chooses, such as ``32768-60999``."""

    skew: float = 0.0
    """Least difference in seconds between its clock and the first node's; negative if its clock is behind."""


def report_local_node(here: LocalNode) -> tuple[NodeReport, ...]:
    """Return the report of this node, without any other node."""
    return (_check_local_node(here),)


def collect_node_reports(
    coordination: Coordination, here: LocalNode, report: Callable[[str], None]
) -> tuple[NodeReport, ...] | None:
    """Check this node and its connections. Return the reports of all nodes to member 0, and None to the others."""
    me, everyone = coordination.members.rank, range(coordination.members.count)
    report("health and host name of each node")
    own = _check_local_node(here)
    report("ports")
    reachability = _check_all_peers(coordination, "agent", here.address, here.network.port_range)
    workers = []
    if here.network.ports or here.gloo_address:  # all nodes of a job have the same settings
        workers = _check_all_peers(coordination, "worker", here.gloo_address or here.address, ())
    report("clocks")
    skews = _measure_clock_skews(coordination)
    coordination.publish("node report", encode(own))
    coordination.publish("reachability", [[encode(one) for one in each] for each in (reachability, workers)])
    if me != 0:
        return None
    reports = coordination.receive("node report", everyone)
    reachable = coordination.receive("reachability", everyone)
    try:
        return tuple(
            decode(
                NodeReport,
                {
                    **reports[rank],
                    "reachability": reachable[rank][0],
                    "worker_reachability": reachable[rank][1],
                    "skew": skews.get(rank, 0.0),
                },
            )
            for rank in everyone
        )
    except ValueError as error:
        raise StoreError(
            f"a member runs another version of hpcelastic: {error}; install the same version on all nodes"
        ) from error


def _check_local_node(here: LocalNode) -> NodeReport:
    name = os.uname().nodename
    settings = HealthSettings()
    found = run_all(local_checks(here.environ, settings), settings.timeout + 1.0)
    return NodeReport(
        name.partition(".")[0],
        here.address,
        here.interface,
        here.reason,
        look_up(name, here.address),
        bool(here.gloo_address),
        tuple(found),
        kernel_ports="-".join(_KERNEL_PORTS.read_text().split()) if _KERNEL_PORTS.exists() else "",
    )


def _check_all_peers(coordination: Coordination, of: str, address: str, ports: Sequence[int]) -> list[Reachability]:
    ranks = peers(coordination.members.rank, coordination.members.count)
    what = f"echo server of the {of}"
    try:
        server = EchoServer(address, ports)
    except OSError as error:
        raise HpcElasticError(f"{os.uname().nodename}: cannot listen at {address}: {error.strerror}") from error
    try:
        coordination.publish(what, encode(server.address))
        received = coordination.receive(what, ranks)
        servers = {rank: decode(EchoAddress, received[rank]) for rank in received}
        found = check_reachability(servers, ranks, coordination.members.id.encode()[:32])
        coordination.meet(f"{what} checked")  # until then others may still connect to this server
    finally:
        server.close()
    return found


def _measure_clock_skews(coordination: Coordination) -> dict[int, float]:
    """Return the clock skew of each other member, as seen by member 0.

    Each member reports its time between two readings of member 0's clock.
    """
    others = coordination.members.others
    if coordination.members.rank != 0:
        coordination.receive("clock request", [0])
        coordination.publish("clock", time.time())
        return {}
    before = time.time()
    coordination.publish("clock request")
    clocks = coordination.receive("clock", others)
    after = time.time()
    return {rank: min(clocks[rank] - before, 0.0) + max(clocks[rank] - after, 0.0) for rank in clocks}
