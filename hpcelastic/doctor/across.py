"""Measurements that several nodes make together. Each step is announced by file names in the coordination directory."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.doctor import visibility
from hpcelastic.doctor.coordination import Coordination
from hpcelastic.doctor.measurements import (
    UNTRIED,
    AcrossMeasurements,
    Contribution,
    Measurements,
    NodeMeasurements,
    Result,
    Times,
    Trial,
)
from hpcelastic.doctor.probe import Effort
from hpcelastic.doctor.race import contents, race, violation
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.storage import files

_MAX_PINGS, _PING_DURATION = 10, 5.0
"""Maximum number of round trips, and seconds after which no further round trip begins."""


@dataclass(frozen=True)
class Depth:
    """The thoroughness of an examination."""

    effort: Effort
    names: int
    """Number of names for which all members race."""

    limits: visibility.WaitLimits


def measure_together(
    coordination: Coordination, node: NodeMeasurements, depth: Depth, report: Callable[[str], None]
) -> Measurements | None:
    """Make the joint measurements. Return all measurements to member 0, and None to the others."""
    is_first = coordination.members.rank == 0
    report("round trips of a new name")
    trips = _measure_round_trips(coordination)
    report(f"{coordination.members.count} nodes race for {depth.names} names")
    exclusive = _run_race(coordination, depth.names)
    report(f"delay until changes are visible (at most {depth.limits.after:g} s)")
    seen = visibility.measure_visibility(coordination, depth.limits)
    contribution = Contribution(node, seen, trips, coordination.unlisted)
    coordination.publish("measurements", encode(contribution))
    if not is_first:
        return None
    contributions = _receive_contributions(coordination)
    together = AcrossMeasurements(
        exclusive,
        next((one.round_trip for one in contributions if one.round_trip), None),
        sum(one.unlisted for one in contributions),
        tuple(one.visibility for one in contributions),
    )
    return Measurements(tuple(one.node for one in contributions), together)


def _receive_contributions(coordination: Coordination) -> list[Contribution]:
    received = coordination.receive("measurements", range(coordination.members.count))
    try:
        return [decode(Contribution, received[rank]) for rank in sorted(received)]
    except ValueError as error:
        raise StoreError(
            f"a member runs another version of hpcelastic: {error}; install the same version on all nodes"
        ) from error


def _measure_round_trips(coordination: Coordination) -> Times | None:
    """Members 0 and 1 answer each other. One member measures the time, so no clocks are compared."""
    me, durations = coordination.members.rank, []
    if me > 1:
        return None
    began = time.monotonic()
    for number in range(_MAX_PINGS):
        last = number == _MAX_PINGS - 1 or time.monotonic() - began > _PING_DURATION
        if me == 0:
            start = time.monotonic()
            coordination.publish(f"ping-{number}", last)
            coordination.receive(f"pong-{number}", [1], waiting=2)
            durations.append(time.monotonic() - start)
        else:
            last = coordination.receive(f"ping-{number}", [0], waiting=2)[0]
            coordination.publish(f"pong-{number}")
        if last:
            break
    return Times(round(statistics.median(durations), 4), round(max(durations), 4)) if durations else None


def _run_race(coordination: Coordination, count: int) -> Trial:
    """All members race for the same names; member 0 judges."""
    names = [f"name-{number}" for number in range(count)]
    me = coordination.members.rank
    directory = coordination.root / "race"
    if me == 0:
        files.make_directory(directory)
    coordination.meet("race ready")
    random.shuffle(names)  # in the same order, the fastest member would win every name
    won = race(directory, f"member-{me}", names)
    coordination.publish("race finished", won)
    if me != 0:
        return UNTRIED
    claims = coordination.receive("race finished", range(coordination.members.count))
    return _judge_race({f"member-{rank}": claims[rank] for rank in claims}, directory, names)


def _judge_race(claims: Mapping[str, list[str]], directory: Path, names: list[str]) -> Trial:
    wrong = violation(claims, contents(directory, names))
    if wrong:
        return Trial(Result.FAILS, wrong)
    wins = sorted(len(won) for won in claims.values())
    return Trial(
        Result.WORKS,
        f"{len(names)} names, {len(claims)} members: one winner each ({wins[0]} to {wins[-1]} wins per member)",
    )
