"""Findings of a benchmark, for given measurements."""

from collections.abc import Mapping

import pytest

from hpcelastic.doctor.benchmark import DeviceSpeed, NodeSpeed, PairSpeed, schedule
from hpcelastic.doctor.speeds import Baseline, SpeedReport, judge_speeds
from hpcelastic.doctor.verdict import Severity

COUNT = 8
FLOPS, MEMORY, FILES, BANDWIDTH, LATENCY = 1e12, 1e11, 1e9, 1e10, 1e-4


def allocation(
    count: int = COUNT,
    nodes: Mapping[int, NodeSpeed] = {},  # not changed
    pairs: Mapping[tuple[int, int], PairSpeed] = {},
) -> list[NodeSpeed]:
    """Return the measurements of equal nodes, except those of ``nodes`` and ``pairs``."""

    def pair(one: int, other: int) -> PairSpeed:
        given = pairs.get((min(one, other), max(one, other)), PairSpeed(0, LATENCY, BANDWIDTH))
        return PairSpeed(other, given.latency, given.bandwidth, given.gather, given.error)

    plain = NodeSpeed("", (DeviceSpeed("processors", FLOPS, MEMORY),), FILES)
    found = []
    for rank in range(count):
        partners = [partners[rank] for partners in schedule(count)]
        given = nodes.get(rank, plain)
        measured = tuple(pair(rank, other) for other in partners if other is not None)
        found.append(NodeSpeed(f"n{rank}", given.devices, given.filesystem, measured, given.error))
    return found


def judged(speeds: list[NodeSpeed], best: Mapping[str, float] = {}) -> SpeedReport:
    return judge_speeds(speeds, Baseline(best))


def problems(report: SpeedReport) -> list[tuple[str, Severity, str]]:
    return [(one.check, one.severity, one.result) for one in report.findings if one.severity is not Severity.OK]


def test_equal_nodes_have_no_findings() -> None:
    report = judged(allocation())
    assert problems(report) == [] and report.slow == {}
    assert [finding.check for finding in report.findings] == [
        "computation",
        "memory bandwidth",
        "filesystem speed",
        "network",
    ]
    assert report.findings[3].result == "8 connections: 10 GB/s (10 GB/s to 10 GB/s), latency 100 us"
    assert report.medians["computation"] == FLOPS and report.medians["network bandwidth"] == BANDWIDTH


def speed_of(flops: float = FLOPS, memory: float = MEMORY, filesystem: float = FILES) -> NodeSpeed:
    gpus = DeviceSpeed("GPU 0", FLOPS, MEMORY), DeviceSpeed("GPU 1", flops, memory)
    return NodeSpeed("", gpus, filesystem)


@pytest.mark.parametrize(
    ("slow", "check", "text"),
    [
        (speed_of(flops=0.7e12), "computation", "n3: 700 GFLOP/s, 70% of the median"),
        (speed_of(memory=0.5e11), "memory bandwidth", "n3: 50 GB/s, 50% of the median"),
        (speed_of(filesystem=1e8), "filesystem speed", "n3: 100 MB/s, 10% of the median"),
    ],
)
def test_a_slow_node_is_found_by_its_slowest_device(slow: NodeSpeed, check: str, text: str) -> None:
    report = judged(allocation(nodes={3: slow}))
    assert problems(report) == [(check, Severity.BAD, text)]
    assert [*report.slow] == ["n3"]


@pytest.mark.parametrize("flops", [0.85e12, 1.5e12])
def test_a_node_that_differs_little_or_is_fast_is_no_finding(flops: float) -> None:
    assert problems(judged(allocation(nodes={3: speed_of(flops=flops)}))) == []


def test_a_node_that_could_not_be_measured() -> None:
    report = judged(allocation(nodes={3: NodeSpeed("", error="RuntimeError: no driver")}))
    assert problems(report) == [("benchmark", Severity.BAD, "n3 could not be measured: RuntimeError: no driver")]
    assert report.slow == {"n3": "it could not be measured: RuntimeError: no driver"}


SLOW = {
    "bandwidth": (PairSpeed(0, LATENCY, 0.3 * BANDWIDTH), "bandwidth 3 GB/s, 30% of the median"),
    "latency": (PairSpeed(0, 20 * LATENCY, BANDWIDTH), "latency 2000 us, 20.0 times the median"),
    "error": (PairSpeed(0, error="Connection timed out"), "Connection timed out"),
}


@pytest.mark.parametrize(("pair", "why"), SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("count", [4, 5, 8, 9, 64])
def test_a_node_with_a_slow_port_is_told_from_a_slow_link(pair: PairSpeed, why: str, count: int) -> None:
    partners = [partners[2] for partners in schedule(count)]
    port = {(min(2, other), max(2, other)): pair for other in partners if other is not None}
    report = judged(allocation(count, pairs=port))
    assert problems(report) == [("network", Severity.BAD, f"n2: {why}")]
    assert report.slow == {"n2": f"network: {why}"}
    (one, other), *_ = port
    report = judged(allocation(count, pairs={(one, other): pair}))
    assert problems(report) == [("network", Severity.WARNING, f"between n{one} and n{other}: {why}")]
    assert report.slow == {}


def test_two_nodes_with_slow_ports_that_are_partners_of_each_other() -> None:
    first = schedule(COUNT)[0]
    two = {0, first[0]}
    slow = PairSpeed(0, LATENCY, 0.1 * BANDWIDTH)
    pairs = {
        (min(rank, other), max(rank, other)): slow
        for partners in schedule(COUNT)
        for rank, other in enumerate(partners)
        if other is not None and {rank, other} & two
    }
    assert {*judged(allocation(pairs=pairs)).slow} == {f"n{rank}" for rank in two}


def test_two_nodes_have_one_connection_which_is_compared_with_earlier_ones() -> None:
    report = judged(allocation(2), {"network bandwidth": 2 * BANDWIDTH, "computation": FLOPS})
    assert problems(report) == [
        (
            "baseline",
            Severity.WARNING,
            "the median of network bandwidth is 50% of the best benchmark in this directory",
        )
    ]
    broken = judged(allocation(2, pairs={(0, 1): PairSpeed(0, error="refused")}))
    assert problems(broken) == [("network", Severity.WARNING, "between n0 and n1: refused")]


def test_a_single_node_is_compared_with_earlier_ones() -> None:
    assert problems(judged(allocation(1))) == []
    assert [check for check, _, _ in problems(judged(allocation(1), {"computation": 2 * FLOPS}))] == ["baseline"]


def test_the_baseline_keeps_the_best_medians() -> None:
    baseline = Baseline({"a": 2.0, "b": 1.0}).with_medians({"b": 3.0, "c": 4.0})
    assert baseline.best == {"a": 2.0, "b": 3.0, "c": 4.0}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 64, 65])
def test_each_node_has_two_different_partners(count: int) -> None:
    for rank in range(count):
        partners = [partners[rank] for partners in schedule(count)]
        for number, other in enumerate(partners):
            assert other is None or schedule(count)[number][other] == rank
        known = [other for other in partners if other is not None]
        assert len({*known}) == len(known) >= min(2, count - 1) and rank not in known
