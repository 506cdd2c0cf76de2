"""The parts of the nightly and of the weekly check, each with its command and its budget."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_PYTEST = (sys.executable, "-m", "pytest", "-q", "--dist", "loadgroup")
TIMES = "build/periodic/times.jsonl"
"""The file with the result and the time of each test of the part ``tests``, also if the part was ended."""

_TIMED = ("-p", "tests.timing", "--timing", TIMES)
_MUTANTS = "tests/mutants"
_PROTOCOL = (
    "hpcelastic/protocol",
    "hpcelastic/rendezvous",
    "hpcelastic/storage",
    "hpcelastic/agent",
    "tests/simulation",
    "tests/mutants",
)


@dataclass(frozen=True)
class Part:
    """One command of a check."""

    name: str
    command: tuple[str, ...]
    budget: float
    """Minutes after which the command is killed and the part has failed. 0: no budget."""

    sources: tuple[str, ...] = ("hpcelastic", "tests", "slurm", "configs", "examples", "pyproject.toml")
    """Files and folders on which the result depends. It is out of date when one of them has changed."""


def nightly(day: int) -> list[Part]:
    """Return the parts of the check of one night; together at most 90 minutes on two cores.

    ``day`` (days since some date) moves what is different each night: seeds, one third of the tests and of the mutants,
    and which SLURM is tried.
    """
    tests = (*_PYTEST, *_TIMED, "-n", "2", "-m", "nightly and not weekly", f"--ignore={_MUTANTS}")
    third, release = (f"--third={day % 3}",), RELEASES[day % len(RELEASES)]
    return [
        Part("code", ("make", "check"), 2),
        Part("tests", (*tests, *third), 45),
        Part("simulation", simulate(day * 100_000, "--minutes", "3.5"), 4.5),
        Part("mutants", (*_PYTEST, "-n", "2", "-m", "nightly or not nightly", _MUTANTS, *third), 7),
        *(storm(shape, day, 2, 5, elastic=(day + i) % 2 == 1) for i, shape in enumerate(SHAPES)),
        Part(f"build-{release}", ("make", "matrix", f"SUITES={release}", "BUILD=1"), 7),
        Part(f"slurm-{release}", matrix(release, "tests/slurm/test_cluster.py tests/slurm/test_preemption.py"), 5),
        Part("ordinary-user", ("tests/periodic/ordinary_user.sh",), 7.5),
    ]


def weekly() -> list[Part]:
    """Return the parts of the weekly check. Each is short enough to be repeated alone."""
    return [
        Part("tests", (*_PYTEST, *_TIMED, "-n", "3", "-m", "weekly"), 0),
        Part("busy", ("tests/periodic/beside_busy_loops.sh",), 0),
        *(
            Part(f"simulation-{first}", simulate(first, "--seeds", "10000"), 0, _PROTOCOL)
            for first in range(0, 100_000, 10_000)
        ),
        Part("mutants", (sys.executable, "-m", "tests.mutants"), 0, _PROTOCOL),
        Part("exhaustive-3-nodes", exhaustive("--nodes", "3", "--min", "2", "--depth", "30"), 0, _PROTOCOL),
        *(storm(shape, seed, 20, 0, elastic) for seed, shape in enumerate(SHAPES) for elastic in (False, True)),
        *(Part(f"slurm-{release}", matrix(release), 0) for release in RELEASES),
    ]


RELEASES = ("bookworm", "trixie", "sid")
"""The releases of Debian whose SLURM is tested."""

SHAPES = ("allocation", "pool")


def simulate(first: int, *limit: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.simulation", "--first", str(first), *limit)


def exhaustive(*rules: str) -> tuple[str, ...]:
    faults = ("--faults", "crash=1", "fail=1", "expire=1", "--lag")
    return (sys.executable, "-m", "tests.protocol.exhaustive", *rules, *faults, "--limit", "1000000")


def matrix(release: str, only: str = "") -> tuple[str, ...]:
    return ("make", "matrix", f"SUITES={release}", *([f"ONLY={only}"] if only else []))


def storm(shape: str, seed: int, minutes: float, budget: float, elastic: bool) -> Part:
    """Return a storm on a run of this shape, whose script keeps its state in memory or does not."""
    command = (sys.executable, "-m", "tests.slurm.scenario.storm", "--minutes", str(minutes), "--seed", str(seed))
    name, flags = (f"storm-{shape}-elastic", ("--elastic",)) if elastic else (f"storm-{shape}", ())
    return Part(name, (*command, "--shape", shape, *flags), budget)
