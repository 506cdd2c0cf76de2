"""Rules that turn the measurements of a benchmark into findings. Pure.

Each node is compared with the median of its allocation, and the median with the best one that the cluster has shown
before. A connection has two ends. The fewest nodes are blamed that explain all slow connections; a connection that is
the only slow one of its node is blamed itself.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcelastic.doctor.benchmark import NodeSpeed, PairSpeed
from hpcelastic.doctor.verdict import Conclusion, Severity
from hpcelastic.health.cuts import Cuts

_SLOW = 0.8
"""The part of the median below which a node computes slowly."""

_SLOW_PAIR = 0.6
"""The part of the median bandwidth below which a connection is slow."""

_LATE_FACTOR, _LATE_SECONDS, _LATE_DEVIATIONS = 3.0, 0.001, 20.0
"""A connection is slow if its latency is more than so many times the median, and so many seconds and so many typical
deviations more. The deviations are large on busy nodes, because their processes wait for processors."""

_SLOW_FILES = 0.25
"""The part of the median below which the filesystem is slow on a node. It is shared, so it varies more."""

_SLOW_ALL = 0.8
"""The part of the best median of earlier benchmarks below which the whole allocation is slow."""


@dataclass(frozen=True)
class Baseline:
    """The best medians that benchmarks in a directory have measured, by the name of the quantity."""

    best: Mapping[str, float] = field(default_factory=dict)

    def with_medians(self, medians: Mapping[str, float]) -> "Baseline":
        """Return the baseline after a benchmark with these medians."""
        names = sorted({*self.best, *medians})
        return Baseline({name: max(self.best.get(name, 0.0), medians.get(name, 0.0)) for name in names})


@dataclass(frozen=True)
class SpeedReport:
    """The findings of a benchmark."""

    findings: tuple[Conclusion, ...]
    slow: Mapping[str, str]
    """The slow nodes, and what is slow."""

    medians: Mapping[str, float]
    """The medians of the allocation, in operations or bytes a second."""


def judge_speeds(speeds: Sequence[NodeSpeed], baseline: Baseline) -> SpeedReport:
    """Return the findings on the nodes, which are in the order of their ranks."""
    slow: dict[str, str] = {}
    findings: list[Conclusion] = []
    medians: dict[str, float] = {}
    for name, unit, least, pick in _QUANTITIES:
        values = {speed.node: value for speed in speeds if (value := pick(speed)) is not None}
        if not values:
            continue
        median = medians[name] = statistics.median(values.values())
        found = {node: value for node, value in values.items() if value < least * median}
        for node, value in found.items():
            slow.setdefault(node, f"{name} {value / median:.0%} of the median")
            findings.append(_slow_node(name, f"{node}: {_scaled(value, unit)}, {value / median:.0%} of the median"))
        if not found:
            findings.append(Conclusion(name, Severity.OK, _spread([*values.values()], unit)))
    findings += _connections(speeds, slow, medians)
    findings += _errors(speeds, slow)
    findings += _compared(medians, baseline)
    return SpeedReport(tuple(findings), slow, medians)


def _slowest_device(pick: Callable[..., float]) -> Callable[[NodeSpeed], float | None]:
    return lambda speed: min(map(pick, speed.devices), default=None)


_QUANTITIES: tuple[tuple[str, str, float, Callable[[NodeSpeed], float | None]], ...] = (
    ("computation", "FLOP/s", _SLOW, _slowest_device(lambda device: device.flops)),
    ("memory bandwidth", "B/s", _SLOW, _slowest_device(lambda device: device.memory)),
    ("filesystem speed", "B/s", _SLOW_FILES, lambda speed: speed.filesystem or None),
)


def _slow_node(name: str, seen: str) -> Conclusion:
    meaning = "each step of a run waits for its slowest rank"
    remedy = "exclude the node from jobs; check its clock rates, its power and other users' processes"
    return Conclusion(name, Severity.BAD, seen, meaning, remedy)


def _connections(speeds: Sequence[NodeSpeed], slow: dict[str, str], medians: dict[str, float]) -> Iterator[Conclusion]:
    """Judge the connections. Each is measured by both of its nodes, and the worse measurement counts."""
    nodes = [speed.node for speed in speeds]
    measured = [pair for speed in speeds for pair in speed.pairs]
    bad = _slow_connections(speeds, medians)
    if measured and not bad:
        bandwidths = _spread([pair.bandwidth for pair in measured], "B/s")
        latency = f"{_median_of_best(speeds, lambda pair: -pair.latency) * -1e6:.0f} us"
        yield Conclusion("network", Severity.OK, f"{len(measured) // 2} connections: {bandwidths}, latency {latency}")
    counts = Counter(node for pair in bad for node in pair)
    blamed = {node for node in Cuts(nodes, bad).fewest() if counts[node] > 1}
    for node in sorted(blamed, key=nodes.index):
        why = next(why for pair, why in bad.items() if node in pair)
        slow.setdefault(node, f"network: {why}")
        meaning = "all its measured connections are slow, and those of its partners to others are not"
        remedy = "check the cable, the port and the firmware of the network; exclude the node until then"
        yield Conclusion("network", Severity.BAD, f"{node}: {why}", meaning, remedy)
    for (one, other), why in bad.items():
        if not blamed & {one, other}:
            meaning = "the other connections of both nodes are not slow" if len(nodes) > 2 else ""
            seen = f"between {one} and {other}: {why}"
            yield Conclusion("network", Severity.WARNING, seen, meaning, "check the switches between the two nodes")


def _slow_connections(speeds: Sequence[NodeSpeed], medians: dict[str, float]) -> dict[tuple[str, str], str]:
    """Return why connections are slow or broken, by their two nodes. Add the medians of the others to ``medians``."""
    nodes = [speed.node for speed in speeds]
    measured = [(rank, pair) for rank, speed in enumerate(speeds) for pair in speed.pairs]
    good = [pair for _, pair in measured if not pair.error]
    latency = late = bandwidth = 0.0
    gather: float | None = None
    if good:
        # Of each node its best connection, because a slow node slows down half of all connections of four nodes.
        latency = -_median_of_best(speeds, lambda pair: -pair.latency)
        late = latency + _lateness(latency, good)
        medians["network bandwidth"] = bandwidth = _median_of_best(speeds, lambda pair: pair.bandwidth)
        if any(pair.gather is not None for pair in good):
            medians["GPU network bandwidth"] = gather = _median_of_best(speeds, lambda pair: pair.gather or 0.0)
    bad: dict[tuple[str, str], str] = {}
    for rank, pair in measured:
        why = _why_slow(pair, bandwidth, gather)
        if not why and pair.latency > late:
            why = f"latency {pair.latency * 1e6:.0f} us, {pair.latency / latency:.1f} times the median"
        if why:
            bad.setdefault((nodes[min(rank, pair.other)], nodes[max(rank, pair.other)]), why)
    return bad


def _lateness(latency: float, pairs: Sequence[PairSpeed]) -> float:
    """Return the seconds by which a connection must exceed the median ``latency`` to be slow."""
    deviations = sorted(abs(pair.latency - latency) for pair in pairs)
    # The first quartile, because a slow node slows down two thirds of all connections of three nodes.
    typical = deviations[(len(deviations) - 1) // 4]
    return max((_LATE_FACTOR - 1) * latency, _LATE_SECONDS, _LATE_DEVIATIONS * typical)


def _median_of_best(speeds: Sequence[NodeSpeed], pick: Callable[[PairSpeed], float]) -> float:
    """Return the median of the best measurement of each node."""
    best = [max(pick(pair) for pair in speed.pairs if not pair.error) for speed in speeds if _measured(speed)]
    return statistics.median(best)


def _measured(speed: NodeSpeed) -> bool:
    return any(not pair.error for pair in speed.pairs)


def _why_slow(pair: PairSpeed, bandwidth: float, gather: float | None) -> str:
    """Return why a connection is broken, or its bandwidth low; empty if it is not."""
    if pair.error:
        return pair.error
    if pair.bandwidth < _SLOW_PAIR * bandwidth:
        return f"bandwidth {_scaled(pair.bandwidth, 'B/s')}, {pair.bandwidth / bandwidth:.0%} of the median"
    if pair.gather is not None and gather is not None and pair.gather < _SLOW_PAIR * gather:
        return f"bandwidth between GPUs {_scaled(pair.gather, 'B/s')}, {pair.gather / gather:.0%} of the median"
    return ""


def _errors(speeds: Sequence[NodeSpeed], slow: dict[str, str]) -> Iterator[Conclusion]:
    for speed in speeds:
        if speed.error:
            slow.setdefault(speed.node, f"it could not be measured: {speed.error}")
            remedy = "run the benchmark on this node alone for its output: hpcelastic doctor --benchmark --dir DIR"
            yield Conclusion(
                "benchmark", Severity.BAD, f"{speed.node} could not be measured: {speed.error}", "", remedy
            )


def _compared(medians: Mapping[str, float], baseline: Baseline) -> Iterator[Conclusion]:
    """Compare the allocation with the best one before. Then also a whole allocation that is slow is found."""
    for name, median in medians.items():
        best = baseline.best.get(name, 0.0)
        if median < _SLOW_ALL * best:
            seen = f"the median of {name} is {median / best:.0%} of the best benchmark in this directory"
            meaning = "all nodes of this allocation are slow, or it has nodes of another kind"
            yield Conclusion("baseline", Severity.WARNING, seen, meaning, "compare with other nodes: sbatch --exclude")


def _spread(values: Sequence[float], unit: str) -> str:
    least, median, greatest = min(values), statistics.median(values), max(values)
    return f"{_scaled(median, unit)} ({_scaled(least, unit)} to {_scaled(greatest, unit)})"


def _scaled(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"
