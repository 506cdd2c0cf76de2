"""Simulate many runs, on all cores.

    python -m tests.simulation --seeds 100000
    python -m tests.simulation --minutes 4

The command prints what was simulated. It reduces and prints a history that violates a property. The exit status is then
1.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcelastic.protocol.codec import decode
from tests.simulation.faults import PROFILES, Profile, Scenario, scenario
from tests.simulation.shrink import shrunk, story, violation_of
from tests.simulation.simulation import Simulation

_BATCH = 50


@dataclass
class Tally:
    """A summary of histories."""

    histories: int = 0
    rounds: int = 0
    versions: int = 0
    moves: int = 0
    counted: int = 0
    simulated: float = 0.0
    """Simulated time in seconds."""

    struck: Counter[str] = field(default_factory=Counter)
    failed: list[Scenario] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.struck.items()))
        return (
            f"{self.histories:,} histories of {self.simulated / max(1, self.histories):.0f} simulated seconds: "
            f"{self.rounds:,} rounds, {self.versions:,} versions, {self.moves:,} publications by workers, "
            f"{self.counted:,} additions to a counter\nfaults: {faults}"
        )


def tally(scenarios: list[Scenario]) -> Tally:
    """Simulate these scenarios."""
    total = Tally()
    for each in scenarios:
        world = Simulation(each)
        try:
            world.run()
        except AssertionError:  # a Violation, or a check of the code itself
            total.failed.append(each)
        total.add(
            Tally(
                1,
                world.state.round,
                world.versions,
                world.referee.moves,
                world.referee.counted,
                world.now,
                world.struck,
            )
        )
    return total


def main() -> int:
    arguments = _arguments()
    if arguments.replay:
        return _show(decode(Scenario, json.loads(arguments.replay)))
    began, total = time.monotonic(), Tally()
    batches = _batches(arguments.first, arguments.seeds, _profiles(arguments.profile))
    with multiprocessing.Pool(arguments.jobs, initializer=_prepare) as pool:
        for part in pool.imap_unordered(tally, batches):
            total.add(part)
            _progress(total, arguments, time.monotonic() - began)
            if total.failed or time.monotonic() - began > 60 * arguments.minutes:
                pool.terminate()
                break
    print(f"\n{total}\n{time.monotonic() - began:.0f} s with {arguments.jobs} processes")
    return _show(shrunk(total.failed[0])) if total.failed else 0


def _show(failed: Scenario) -> int:
    violation = violation_of(failed)
    print(story(failed, violation) if violation else "no property is violated")
    return 1 if violation else 0


def _batches(first: int, seeds: int, profiles: list[Profile]) -> Iterator[list[Scenario]]:
    for start in range(first, first + seeds, _BATCH):
        yield [
            scenario(seed, profiles[seed % len(profiles)]) for seed in range(start, min(start + _BATCH, first + seeds))
        ]


def _profiles(name: str | None) -> list[Profile]:
    return [profile for profile in PROFILES if name in (None, profile.name)]


def _prepare() -> None:
    gc.set_threshold(100_000)  # the objects of a history are freed together


def _progress(total: Tally, arguments: argparse.Namespace, passed: float) -> None:
    if sys.stderr.isatty():
        pace = total.histories / passed
        left = min((arguments.seeds - total.histories) / pace, 60 * arguments.minutes - passed)
        print(f"\r{total.histories:,} histories, {pace:.0f}/s, {left:.0f} s left ", end="", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="number of histories; without it 1000, or no limit with --minutes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no history after this time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--profile", choices=[profile.name for profile in PROFILES], help="only this kind of history")
    parser.add_argument("--replay", metavar="SCENARIO", help="repeat one scenario, as printed for a failure")
    arguments = parser.parse_args()
    if arguments.seeds is None:
        arguments.seeds = 1000 if math.isinf(arguments.minutes) else 10**9
    return arguments


if __name__ == "__main__":
    sys.exit(main())
