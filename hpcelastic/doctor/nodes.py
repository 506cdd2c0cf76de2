"""Rules that turn node reports into findings. Pure."""

from collections.abc import Iterator, Sequence

from hpcelastic.doctor.node_report import NodeReport
from hpcelastic.doctor.verdict import Conclusion, Severity, format_seconds

_SLOW_LOOKUP = 1.0
"""Seconds after which a look-up of a name is slow."""

_MAX_CLOCK_SKEW = 2.0
"""Seconds by which clocks may differ."""

_MAX_SHOWN = 8


def judge_nodes(reports: Sequence[NodeReport]) -> tuple[Conclusion, ...]:
    """Return the findings of all checks: one for each check that passes, and one for each node that fails it."""
    rules = (_network, _names, _ports, _worker_ports, _clock, _health)
    return tuple(finding for rule in rules for finding in rule(reports))


def _network(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    loopback = [one for one in reports if one.address.startswith("127.") and len(reports) > 1]
    for one in loopback if len({s.node for s in reports}) > 1 else ():
        yield Conclusion(
            "network",
            Severity.BAD,
            f"{one.node} has only the loopback address {one.address}, which other nodes cannot reach",
            "its workers cannot connect to the workers of other nodes",
            "bring up its network, or set network.interface to the interface to use",
        )
    reasons = "; ".join(dict.fromkeys(one.reason for one in reports))
    yield Conclusion(
        "network", Severity.OK, f"{_join_some([f'{s.node} {s.address} ({s.interface})' for s in reports])}: {reasons}"
    )


def _names(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    several = len({one.address for one in reports}) > 1
    unresolved = Severity.BAD if several else Severity.WARNING
    remedy = (
        "add the name to /etc/hosts or to the name server, or set environment.GLOO_SOCKET_IFNAME to the name of the "
        "interface"
    )
    wrong = False
    for one in reports:
        meaning = "gloo listens at the address of the node's host name, and other nodes must be able to reach it"
        seen, severity = "", unresolved
        if one.lookup.error:
            seen = f"{one.node} cannot resolve its own host name, {one.lookup.name}: {one.lookup.error}"
        elif one.lookup.loopback and several:
            seen = f"{one.node} resolves its own host name to {one.lookup.addresses[0]}, which other nodes cannot reach"
        elif max(one.lookup.forward, one.lookup.reverse) > _SLOW_LOOKUP:
            forward, reverse = format_seconds(one.lookup.forward), format_seconds(one.lookup.reverse)
            seen = f"{one.node}: the look-up of its host name took {forward}, of its address {reverse}"
            severity = Severity.WARNING
            meaning = "each worker waits this long when it connects to the store of its round: torch looks up names"
        if seen:
            wrong = True
            yield Conclusion(
                "host names", Severity.WARNING if one.gloo_interface_set else severity, seen, meaning, remedy
            )
    if not wrong:
        longest = max(max(one.lookup.forward, one.lookup.reverse) for one in reports)
        result = f"each node resolves its own host name, in at most {format_seconds(longest)}"
        yield Conclusion("host names", Severity.OK, result)


def _ports(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    checked = [(rank, peer) for rank, one in enumerate(reports) for peer in one.reachability]
    if not checked:
        return
    failed = {(rank, peer.rank): peer.tcp for rank, peer in checked if peer.tcp}
    isolated = _isolated({(rank, peer.rank) for rank, peer in checked}, set(failed))
    remedy = (
        "check the network cables; if a firewall leaves only some ports open between nodes, set network.ports to them; "
        "if it leaves only some interface open, set network.interface to it"
    )
    for rank in sorted(isolated):
        seen = f"{reports[rank].node}: no TCP connection to or from any other node"
        meaning = "its workers cannot connect to the workers of other nodes"
        yield Conclusion("ports", Severity.BAD, seen, meaning, remedy)
    for (source, target), error in failed.items():
        if not {source, target} & isolated:
            seen = f"{reports[source].node} cannot connect to {reports[target].node} by TCP: {error}"
            yield Conclusion("ports", Severity.BAD, seen, "the workers of these nodes cannot connect", remedy)
    no_udp = [(rank, peer.rank) for rank, peer in checked if peer.udp and not peer.tcp]
    if no_udp:
        pairs = _join_some([f"{reports[source].node} to {reports[target].node}" for source, target in no_udp])
        meaning = "agents learn of changes by polling the run's directory every rendezvous.poll seconds, and no sooner"
        remedy = "allow UDP between the nodes, for faster recovery"
        yield Conclusion("ports", Severity.WARNING, f"no answer by UDP: {pairs}", meaning, remedy)
    if not failed and not no_udp:
        result = f"{len(checked)} connections between nodes work, by TCP and UDP"
        yield Conclusion("ports", Severity.OK, result)


def _worker_ports(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    """The ports of gloo and NCCL, if those of agents and stores are limited or at another interface."""
    checked = [(rank, peer) for rank, one in enumerate(reports) for peer in one.worker_reachability]
    failed = [(rank, peer) for rank, peer in checked if peer.tcp]
    ports = ", ".join(dict.fromkeys(one.kernel_ports for one in reports))
    if failed:
        pairs = _join_some([f"{reports[rank].node} to {reports[peer.rank].node}" for rank, peer in failed])
        yield Conclusion(
            "ports of workers",
            Severity.BAD,
            f"no connection by TCP at ports that the kernel chooses ({ports}): {pairs}",
            "gloo and NCCL listen at such ports, and have no setting for them",
            "open these ports between compute nodes, or let root limit them to open ones: "
            "sysctl net.ipv4.ip_local_port_range; if another interface has no firewall, set "
            "environment.GLOO_SOCKET_IFNAME and environment.NCCL_SOCKET_IFNAME to it",
        )
    elif checked:
        where = " at the interface of GLOO_SOCKET_IFNAME" if any(one.gloo_interface_set for one in reports) else ""
        result = f"gloo and NCCL can use the ports of the kernel ({ports}){where}"
        yield Conclusion("ports of workers", Severity.OK, result)


def _isolated(checked: set[tuple[int, int]], failed: set[tuple[int, int]]) -> set[int]:
    """Return the nodes to and from which every checked connection failed; an empty set if that is all nodes."""
    ranks = {rank for pair in checked for rank in pair}
    isolated = {rank for rank in ranks if {pair for pair in checked if rank in pair} <= failed}
    return isolated if isolated != ranks else set()


def _clock(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    skewed = [one for one in reports if abs(one.skew) > _MAX_CLOCK_SKEW]
    for one in skewed:
        direction = "ahead of" if one.skew > 0 else "behind"
        seen = f"the clock of {one.node} is {abs(one.skew):.0f} s {direction} that of {reports[0].node}"
        meaning = "a run does not depend on clocks, but the times in the logs of several nodes cannot be compared"
        yield Conclusion("clocks", Severity.WARNING, seen, meaning, "check the time service of the nodes")
    if len(reports) > 1 and not skewed:
        yield Conclusion("clocks", Severity.OK, f"no measured difference of more than {_MAX_CLOCK_SKEW:g} s")


def _health(reports: Sequence[NodeReport]) -> Iterator[Conclusion]:
    for one in reports:
        for finding in one.findings:
            severity = Severity.BAD if finding.bad else Severity.WARNING
            meaning = "an agent on this node fails its node check and does not join the run" if finding.bad else ""
            yield Conclusion(finding.check, severity, f"{one.node}: {finding.seen}", meaning, finding.remedy)
    if not any(one.findings for one in reports):
        yield Conclusion("node check", Severity.OK, "no problem with GPUs, disk and shared memory")


def _join_some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
    return ", ".join(texts[:_MAX_SHOWN]) + more
