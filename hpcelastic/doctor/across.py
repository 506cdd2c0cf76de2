"""What nodes learn of a filesystem together. Each step is announced by names in the meeting's directory."""

import contextlib
import fcntl
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.doctor import sight
from hpcelastic.doctor.measurements import (
    UNTRIED,
    AcrossMeasurements,
    Lag,
    Measurements,
    NodeMeasurements,
    Result,
    Share,
    Times,
    Trial,
)
from hpcelastic.doctor.meeting import Meeting
from hpcelastic.doctor.probe import Effort, lock_now
from hpcelastic.doctor.race import contents, create_exclusively, race, violation
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded
from hpcelastic.store.errnos import repeated

_LOCKS: Mapping[str, Callable[[int, int], None]] = {"flock": fcntl.flock, "posix": fcntl.lockf}
_HANDOVER = 5.0
"""Seconds for which a released lock is waited for."""

_PINGS, _PING_TIME = 10, 5.0
"""Round trips, at most, and seconds after which no further one begins."""

_EXCLUDED, _HELD_TOO = "excluded", "held too"


@dataclass(frozen=True)
class Depth:
    """How much the nodes do together."""

    effort: Effort
    names: int
    """Names that all members race for."""

    patience: sight.Patience


def take_part(
    meeting: Meeting, node: NodeMeasurements, depth: Depth, tell: Callable[[str], None]
) -> Measurements | None:
    """This member's part of everything; all that was measured for member 0, None for the others."""
    zero = meeting.members.rank == 0
    tell("a name there and back")
    trips = _round_trips(meeting)
    tell(f"{meeting.members.count} nodes race for {depth.names} names")
    exclusive, exclusive_open = _races(meeting, depth.names)
    tell("locks")
    locks = _hold_locks(meeting) if zero else _try_locks(meeting)
    tell(f"how late changes are seen (at most {depth.patience.after:g} s)")
    seen = sight.see(meeting, depth.patience)
    meeting.say("share", encode(Share(node, seen, locks.handover, trips, meeting.unlisted)))
    if not zero:
        return None
    shares = _shares(meeting)
    together = AcrossMeasurements(
        exclusive,
        exclusive_open,
        locks.flock,
        locks.posix,
        next((share.handover for share in shares if share.handover), None),
        next((share.round_trip for share in shares if share.round_trip), None),
        sum(share.unlisted for share in shares),
        tuple(share.sight for share in shares),
    )
    return Measurements(tuple(share.node for share in shares), together)


def _shares(meeting: Meeting) -> list[Share]:
    heard = meeting.hear("share", range(meeting.members.count))
    try:
        return [decode(Share, heard[rank]) for rank in sorted(heard)]
    except ValueError as error:
        raise StoreError(f"a member runs another version of hpcelastic: {error}; use the same on all nodes") from error


def _round_trips(meeting: Meeting) -> Times | None:
    """Members 0 and 1 answer each other; the time is one member's, so that no clocks meet."""
    me, taken = meeting.members.rank, []
    if me > 1:
        return None
    began = time.monotonic()
    for number in range(_PINGS):
        last = number == _PINGS - 1 or time.monotonic() - began > _PING_TIME
        if me == 0:
            start = time.monotonic()
            meeting.say(f"ping-{number}", last)
            meeting.hear(f"pong-{number}", [1])
            taken.append(time.monotonic() - start)
        else:
            last = meeting.hear(f"ping-{number}", [0])[0]
            meeting.say(f"pong-{number}")
        if last:
            break
    return Times(round(statistics.median(taken), 4), round(max(taken), 4)) if taken else None


def _races(meeting: Meeting, count: int) -> tuple[Trial, Trial]:
    """All members race for the same names, by link and by O_EXCL; member 0 judges."""
    names = [f"name-{number}" for number in range(count)]
    me, everybody = meeting.members.rank, range(meeting.members.count)
    directories = [meeting.root / "race-link", meeting.root / "race-open"]
    if me == 0:
        for directory in directories:
            files.make_directory(directory)
    meeting.say("at the line")
    meeting.hear("at the line", everybody)
    random.shuffle(names)  # each in an order of its own, or one would be ahead all along
    racer = f"member-{me}"
    won = [race(directories[0], racer, names, files.publish_new)]
    won.append(race(directories[1], racer, names, create_exclusively))
    meeting.say("raced", won)
    if me != 0:
        return UNTRIED, UNTRIED
    claims = meeting.hear("raced", everybody)
    link, exclusive_open = (
        _judged({f"member-{rank}": claims[rank][way] for rank in claims}, directory, names)
        for way, directory in enumerate(directories)
    )
    return link, exclusive_open


def _judged(claims: Mapping[str, list[str]], directory: Path, names: list[str]) -> Trial:
    wrong = violation(claims, contents(directory, names))
    if wrong:
        return Trial(Result.FAILS, wrong)
    shares = sorted(len(won) for won in claims.values())
    return Trial(
        Result.WORKS, f"{len(names)} names, {len(claims)} members, one winner each ({shares[0]}..{shares[-1]})"
    )


@dataclass(frozen=True)
class _Locks:
    flock: Trial = UNTRIED
    posix: Trial = UNTRIED
    handover: Lag | None = None


def _hold_locks(meeting: Meeting) -> _Locks:
    """Hold one lock of each kind, and hear what the others could do meanwhile."""
    others = meeting.members.others
    directory = meeting.root / "locks"
    files.make_directory(directory)
    with contextlib.ExitStack() as held:
        for name in _LOCKS:
            repeated((directory / name).touch)
        got = {name: _take(held.enter_context(_opened(directory / name)), name) for name in _LOCKS}
        meeting.say("held")
        tried = meeting.hear("tried", others)
    meeting.say("released")
    meeting.hear("locks done", others)
    flock, posix = (_lock_trial(name, got[name], {rank: tried[rank][name] for rank in tried}) for name in _LOCKS)
    return _Locks(flock, posix)


def _try_locks(meeting: Meeting) -> _Locks:
    """Try to get what member 0 holds; member 1 waits for it to be released as well."""
    directory = meeting.root / "locks"
    meeting.hear("held", [0])
    said = {}
    for name in _LOCKS:
        with _opened(directory / name) as fd:
            said[name] = _take(fd, name)
    meeting.say("tried", said)
    meeting.hear("released", [0])
    handover = None
    if meeting.members.rank == 1 and said["flock"] == _EXCLUDED:
        with _opened(directory / "flock") as fd:
            handover = _await_lock(fd)
    meeting.say("locks done")
    return _Locks(handover=handover)


def _lock_trial(name: str, got: str, tried: Mapping[int, str]) -> Trial:
    kind = "flock" if name == "flock" else "POSIX"
    if got != _HELD_TOO:
        return Trial(Result.FAILS, f"{kind} locks cannot be had: {got}")
    bad = [rank for rank, said in tried.items() if said != _EXCLUDED]
    if not bad:
        return Trial(Result.WORKS, f"{kind} locks exclude between nodes")
    said = tried[bad[0]]
    if said == _HELD_TOO:
        return Trial(Result.FAILS, f"members 0 and {bad[0]} held the same {kind} lock at once")
    return Trial(Result.FAILS, f"member {bad[0]} could not try a {kind} lock: {said}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = repeated(lambda: os.open(path, os.O_RDWR))
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):  # the descriptor is gone, whatever the server says to it
            os.close(fd)


def _take(fd: int, name: str) -> str:
    """Try to take a lock; what came of it, in words."""
    try:
        held = bounded(lambda: repeated(lambda: lock_now(fd, _LOCKS[name])), _HANDOVER, name)
        return _HELD_TOO if held else _EXCLUDED
    except OSError as error:
        return error.strerror or str(error)
    except StoreError:
        return f"no answer within {_HANDOVER:g} s"


def _await_lock(fd: int) -> Lag:
    start = time.monotonic()
    while (waited := time.monotonic() - start) < _HANDOVER:
        if _take(fd, "flock") == _HELD_TOO:
            return Lag(round(waited, 4), _HANDOVER)
        time.sleep(0.005)
    return Lag(None, _HANDOVER)
