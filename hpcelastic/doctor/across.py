"""Measurements that several nodes make together. Each step is announced by file names in the coordination directory."""

import contextlib
import fcntl
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.doctor import visibility
from hpcelastic.doctor.coordination import Coordination
from hpcelastic.doctor.measurements import (
    UNTRIED,
    AcrossMeasurements,
    Contribution,
    Lag,
    Measurements,
    NodeMeasurements,
    Result,
    Times,
    Trial,
)
from hpcelastic.doctor.probe import Effort, try_lock
from hpcelastic.doctor.race import contents, create_exclusively, race, violation
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.errnos import retry

_LOCKS: Mapping[str, Callable[[int, int], None]] = {"flock": fcntl.flock, "posix": fcntl.lockf}
_LOCK_TIMEOUT = 5.0
"""Seconds for one attempt to lock, and for the handover of a released lock."""

_MAX_PINGS, _PING_DURATION = 10, 5.0
"""Maximum number of round trips, and seconds after which no further round trip begins."""

_EXCLUDED, _ACQUIRED = "excluded", "acquired"


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
    exclusive, exclusive_open = _run_races(coordination, depth.names)
    report("locks")
    locks = _hold_locks(coordination) if is_first else _try_locks(coordination)
    report(f"delay until changes are visible (at most {depth.limits.after:g} s)")
    seen = visibility.measure_visibility(coordination, depth.limits)
    contribution = Contribution(node, seen, locks.handover, trips, coordination.unlisted)
    coordination.publish("measurements", encode(contribution))
    if not is_first:
        return None
    contributions = _receive_contributions(coordination)
    together = AcrossMeasurements(
        exclusive,
        exclusive_open,
        locks.flock,
        locks.posix,
        next((one.handover for one in contributions if one.handover), None),
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
            coordination.receive(f"pong-{number}", [1])
            durations.append(time.monotonic() - start)
        else:
            last = coordination.receive(f"ping-{number}", [0])[0]
            coordination.publish(f"pong-{number}")
        if last:
            break
    return Times(round(statistics.median(durations), 4), round(max(durations), 4)) if durations else None


def _run_races(coordination: Coordination, count: int) -> tuple[Trial, Trial]:
    """All members race for the same names, by link and by O_EXCL; member 0 judges."""
    names = [f"name-{number}" for number in range(count)]
    me, everyone = coordination.members.rank, range(coordination.members.count)
    directories = [coordination.root / "race-link", coordination.root / "race-open"]
    if me == 0:
        for directory in directories:
            files.make_directory(directory)
    coordination.publish("race ready")
    coordination.receive("race ready", everyone)
    random.shuffle(names)  # in the same order, the fastest member would win every name
    racer = f"member-{me}"
    won = [race(directories[0], racer, names, files.publish_new)]
    won.append(race(directories[1], racer, names, create_exclusively))
    coordination.publish("race finished", won)
    if me != 0:
        return UNTRIED, UNTRIED
    claims = coordination.receive("race finished", everyone)
    link, exclusive_open = (
        _judge_race({f"member-{rank}": claims[rank][way] for rank in claims}, directory, names)
        for way, directory in enumerate(directories)
    )
    return link, exclusive_open


def _judge_race(claims: Mapping[str, list[str]], directory: Path, names: list[str]) -> Trial:
    wrong = violation(claims, contents(directory, names))
    if wrong:
        return Trial(Result.FAILS, wrong)
    wins = sorted(len(won) for won in claims.values())
    return Trial(
        Result.WORKS,
        f"{len(names)} names, {len(claims)} members: one winner each ({wins[0]} to {wins[-1]} wins per member)",
    )


@dataclass(frozen=True)
class _LockResults:
    flock: Trial = UNTRIED
    posix: Trial = UNTRIED
    handover: Lag | None = None


def _hold_locks(coordination: Coordination) -> _LockResults:
    """Hold one lock of each kind, and receive the results of the others' attempts to take it."""
    others = coordination.members.others
    directory = coordination.root / "locks"
    files.make_directory(directory)
    with contextlib.ExitStack() as held:
        for name in _LOCKS:
            retry((directory / name).touch)
        own = {name: _attempt_lock(held.enter_context(_opened(directory / name)), name) for name in _LOCKS}
        coordination.publish("locks held")
        attempts = coordination.receive("locks tried", others)
    coordination.publish("locks released")
    coordination.receive("locks finished", others)
    flock, posix = (_lock_trial(name, own[name], {rank: attempts[rank][name] for rank in attempts}) for name in _LOCKS)
    return _LockResults(flock, posix)


def _try_locks(coordination: Coordination) -> _LockResults:
    """Try to take the locks that member 0 holds. Member 1 also waits until the flock is released."""
    directory = coordination.root / "locks"
    coordination.receive("locks held", [0])
    results = {}
    for name in _LOCKS:
        with _opened(directory / name) as fd:
            results[name] = _attempt_lock(fd, name)
    coordination.publish("locks tried", results)
    coordination.receive("locks released", [0])
    handover = None
    if coordination.members.rank == 1 and results["flock"] == _EXCLUDED:
        with _opened(directory / "flock") as fd:
            handover = _wait_for_lock(fd)
    coordination.publish("locks finished")
    return _LockResults(handover=handover)


def _lock_trial(name: str, own: str, attempts: Mapping[int, str]) -> Trial:
    kind = "flock" if name == "flock" else "POSIX"
    if own != _ACQUIRED:
        return Trial(Result.FAILS, f"member 0 could not take a {kind} lock: {own}")
    wrong = [rank for rank, result in attempts.items() if result != _EXCLUDED]
    if not wrong:
        return Trial(Result.WORKS, f"{kind} locks exclude between nodes")
    result = attempts[wrong[0]]
    if result == _ACQUIRED:
        return Trial(Result.FAILS, f"members 0 and {wrong[0]} held the same {kind} lock at the same time")
    return Trial(Result.FAILS, f"member {wrong[0]} could not try a {kind} lock: {result}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = retry(lambda: os.open(path, os.O_RDWR))
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):  # the descriptor is closed even if the server reports an error
            os.close(fd)


def _attempt_lock(fd: int, name: str) -> str:
    """Try to take a lock. Return `_ACQUIRED`, `_EXCLUDED`, or a description of the error."""
    try:
        held = bounded(lambda: retry(lambda: try_lock(fd, _LOCKS[name])), _LOCK_TIMEOUT, name)
        return _ACQUIRED if held else _EXCLUDED
    except OSError as error:
        return error.strerror or str(error)
    except StoreError:
        return f"no answer within {_LOCK_TIMEOUT:g} s"


def _wait_for_lock(fd: int) -> Lag:
    start = time.monotonic()
    while (waited := time.monotonic() - start) < _LOCK_TIMEOUT:
        if _attempt_lock(fd, "flock") == _ACQUIRED:
            return Lag(round(waited, 4), _LOCK_TIMEOUT)
        time.sleep(0.005)
    return Lag(None, _LOCK_TIMEOUT)
