"""Report where the time of a test run goes.

    pytest -p tests.timing --timing FILE ...     # append a JSON line to FILE for each test
    python -m tests.timing FILE                  # print the report of such a file

A line has the seconds of a test's set-up, call and teardown, and the processor seconds of the test process and of all
children that it has waited for. A test with far fewer processor seconds than seconds waits: for SLURM, for a time-out,
for a sleep, or for the other test processes of a busy machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

_BEFORE = pytest.StashKey[float]()
_PROCESSOR = "processor"


@dataclass
class Timing:
    """The time of one test. All figures are seconds.

    ``outcome`` is passed, skipped or failed. The file shows what has failed so far, also if the run was ended early.
    """

    test: str
    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0
    processor: float = 0.0
    outcome: str = "passed"
    failure: str = ""
    """What a failed test shows."""

    @property
    def total(self) -> float:
        return self.setup + self.call + self.teardown


class Recorder:
    """Append the timing of each test to a file, in the process that the reports of all test processes reach."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: dict[str, Timing] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        timing = self._running.setdefault(report.nodeid, Timing(report.nodeid))
        setattr(timing, report.when or "call", report.duration)
        if report.outcome != "passed":
            timing.outcome = report.outcome
        if report.failed:
            timing.failure = report.longreprtext
        if report.when == "teardown":
            timing.processor = dict(report.user_properties)[_PROCESSOR]
            with self._path.open("a") as stream:
                stream.write(json.dumps(asdict(self._running.pop(report.nodeid))) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timing", metavar="FILE", type=Path, help="append where the time of each test went to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("timing")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    item.stash.setdefault(_BEFORE, item.session.stash.get(_BEFORE, 0.0))
    report = yield
    now = _processor()
    if call.when == "teardown":
        report.user_properties = [(_PROCESSOR, now - item.stash[_BEFORE])]
        item.session.stash[_BEFORE] = now
    return report


def _processor() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def report(timings: Iterable[Timing]) -> str:
    """Return the folders, the files and the tests that take the longest."""
    timings = list(timings)
    parts = [
        _table("folder", timings, lambda test: "/".join(test.split("::")[0].split("/")[:2]), 40),
        _table("file", timings, lambda test: test.split("::")[0], 40),
        _table("test", timings, lambda test: test.split("[")[0], 60),
    ]
    return "\n\n".join(parts)


def _table(title: str, timings: list[Timing], key: Callable[[str], str], rows: int) -> str:
    groups: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        groups[key(timing.test)].append(timing)
    sums = [
        (sum(t.total for t in group), sum(t.setup + t.teardown for t in group), sum(t.processor for t in group), name)
        for name, group in groups.items()
    ]
    lines = [f"{'seconds':>9} {'fixtures':>8} {'processor':>9} {'tests':>6}  {title}"]
    for total, fixtures, processor, name in sorted(sums, reverse=True)[:rows]:
        lines.append(f"{total:9.1f} {fixtures:8.1f} {processor:9.1f} {len(groups[name]):6}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(Timing(**json.loads(line)) for line in Path(sys.argv[1]).read_text().splitlines()))
