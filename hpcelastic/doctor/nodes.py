"""What is to be thought of the nodes of an allocation. Pure."""

from collections.abc import Iterator, Sequence

from hpcelastic.doctor.stock import Stock
from hpcelastic.doctor.verdict import Finding, Severity, in_seconds

_SLOW = 1.0
"""Seconds that a look-up of a name may take."""

_SKEW = 2.0
"""Seconds that clocks may differ."""

_SHOWN = 8


def judge_nodes(stock: Sequence[Stock]) -> tuple[Finding, ...]:
    """The findings of all checks, the sound ones too; a node each where something is wrong."""
    rules = (_network, _names, _ports, _clock, _health)
    return tuple(finding for rule in rules for finding in rule(stock))


def _network(stock: Sequence[Stock]) -> Iterator[Finding]:
    hidden = [one for one in stock if one.address.startswith("127.") and len(stock) > 1]
    for one in hidden if len({s.node for s in stock}) > 1 else ():
        yield Finding(
            "network",
            Severity.BAD,
            f"{one.node} has only {one.address}, at which no other node can reach it",
            "its workers could not meet the others",
            "bring its network up, or name the interface: network.interface",
        )
    whys = "; ".join(dict.fromkeys(one.why for one in stock))
    yield Finding(
        "network", Severity.FINE, f"{_some([f'{s.node} {s.address} ({s.interface})' for s in stock])}: {whys}"
    )


def _names(stock: Sequence[Stock]) -> Iterator[Finding]:
    several = len({one.address for one in stock}) > 1
    grave = Severity.BAD if several else Severity.WARNING
    remedy = "put it into /etc/hosts or the name server, or set environment.GLOO_SOCKET_IFNAME to the interface"
    wrong = False
    for one in stock:
        means, seen, severity = "gloo listens at the address of the node's name, where others must reach it", "", grave
        if one.lookup.error:
            seen = f"{one.node} cannot resolve its own name, {one.lookup.name}: {one.lookup.error}"
        elif one.lookup.loopback and several:
            seen = f"{one.node} resolves its own name to {one.lookup.addresses[0]}, which is no other's way to it"
        elif max(one.lookup.forward, one.lookup.backward) > _SLOW:
            slow = f"{in_seconds(one.lookup.forward)}, its address {in_seconds(one.lookup.backward)}"
            seen, severity = f"{one.node}: its name took {slow} to look up", Severity.WARNING
            means = "whoever looks names up stands still for so long, at each connection"
        if seen:
            wrong = True
            yield Finding("names", Severity.WARNING if one.gloo_told else severity, seen, means, remedy)
    if not wrong:
        longest = max(max(one.lookup.forward, one.lookup.backward) for one in stock)
        yield Finding("names", Severity.FINE, f"each node knows its own name, at most {in_seconds(longest)}")


def _ports(stock: Sequence[Stock]) -> Iterator[Finding]:
    tried = [(rank, knock) for rank, one in enumerate(stock) for knock in one.knocks]
    if not tried:
        return
    failed = {(rank, knock.rank): knock.tcp for rank, knock in tried if knock.tcp}
    cut = _cut_off({(rank, knock.rank) for rank, knock in tried}, set(failed))
    remedy = "check its cable, and that no firewall stands between the nodes of a job"
    for rank in sorted(cut):
        seen = f"{stock[rank].node} reaches no other node by TCP, and is reached by none"
        yield Finding("ports", Severity.BAD, seen, "its workers could not meet the others", remedy)
    for (source, target), why in failed.items():
        if not {source, target} & cut:
            seen = f"{stock[source].node} does not reach {stock[target].node} by TCP: {why}"
            yield Finding("ports", Severity.BAD, seen, "their workers could not meet", remedy)
    silent = [(rank, knock.rank) for rank, knock in tried if knock.udp and not knock.tcp]
    if silent:
        pairs = _some([f"{stock[source].node} to {stock[target].node}" for source, target in silent])
        means = "agents hear of news by looking in the run's directory, within rendezvous.poll"
        yield Finding("ports", Severity.WARNING, f"no UDP from {pairs}", means, "let UDP pass for faster recovery")
    if not failed and not silent:
        yield Finding("ports", Severity.FINE, f"{len(tried)} ways between nodes are open, for TCP and UDP")


def _cut_off(tried: set[tuple[int, int]], failed: set[tuple[int, int]]) -> set[int]:
    """Nodes of which every way that was tried failed, both ways; empty if that were all of them."""
    ranks = {rank for way in tried for rank in way}
    cut = {rank for rank in ranks if {way for way in tried if rank in way} <= failed}
    return cut if cut != ranks else set()


def _clock(stock: Sequence[Stock]) -> Iterator[Finding]:
    off = [one for one in stock if abs(one.skew) > _SKEW]
    for one in off:
        seen = f"{one.node} is {abs(one.skew):.0f} s {'ahead of' if one.skew > 0 else 'behind'} {stock[0].node}"
        means = "nothing in a run rests on clocks, but logs of several nodes cannot be compared"
        yield Finding("clocks", Severity.WARNING, seen, means, "check the nodes' time service")
    if len(stock) > 1 and not off:
        yield Finding("clocks", Severity.FINE, "agree, as far as can be seen")


def _health(stock: Sequence[Stock]) -> Iterator[Finding]:
    for one in stock:
        for finding in one.findings:
            severity = Severity.BAD if finding.bad else Severity.WARNING
            means = "an agent would not join from there" if finding.bad else ""
            yield Finding(finding.check, severity, f"{one.node}: {finding.seen}", means, finding.remedy)
    if not any(one.findings for one in stock):
        yield Finding("node check", Severity.FINE, "GPUs, free space: nothing wrong")


def _some(words: Sequence[str]) -> str:
    more = f", and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
