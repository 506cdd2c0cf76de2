"""What each node of an allocation is to the others: its address, name, ports, clock, and its own health."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcelastic.doctor.meeting import Meeting
from hpcelastic.doctor.names import Lookup, look_up
from hpcelastic.doctor.reach import Address, Door, Knock, knock, peers
from hpcelastic.errors import StoreError
from hpcelastic.health.checks import local_checks, run_all
from hpcelastic.health.finding import Finding
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.codec import decode, encode


@dataclass(frozen=True)
class Here:
    """What is told of this node."""

    address: str
    interface: str
    why: str
    """Why others would reach it at that address."""

    environ: Mapping[str, str]
    """What workers would be started with."""


@dataclass(frozen=True)
class Stock:
    """What one node has found out about itself and its way to others."""

    node: str
    address: str
    interface: str
    why: str
    lookup: Lookup
    gloo_told: bool
    """True if gloo is told its interface, and so asks for no name."""

    findings: tuple[Finding, ...] = ()
    knocks: tuple[Knock, ...] = ()
    skew: float = 0.0
    """Seconds by which its clock differs from the first node's, at least; below 0 if it is behind."""


def take_stock_alone(here: Here) -> tuple[Stock, ...]:
    """What this node finds by itself."""
    return (_own(here),)


def take_stock(meeting: Meeting, here: Here, tell: Callable[[str], None]) -> tuple[Stock, ...] | None:
    """This member's part; what all have found for member 0, None for the others."""
    me, everybody = meeting.members.rank, range(meeting.members.count)
    tell("each node's health and name")
    own = _own(here)
    tell("ports")
    knocks = _knock_at_all(meeting, here)
    tell("clocks")
    skews = _skews(meeting)
    meeting.say("stock", encode(own))
    meeting.say("knocks", [encode(one) for one in knocks])
    if me != 0:
        return None
    told, tried = meeting.hear("stock", everybody), meeting.hear("knocks", everybody)
    try:
        return tuple(
            decode(Stock, {**told[rank], "knocks": tried[rank], "skew": skews.get(rank, 0.0)}) for rank in everybody
        )
    except ValueError as error:
        raise StoreError(f"a member runs another version of hpcelastic: {error}; use the same on all nodes") from error


def _own(here: Here) -> Stock:
    name = os.uname().nodename
    settings = HealthSettings()
    found = run_all(local_checks(here.environ, settings), settings.timeout + 1.0)
    return Stock(
        name.partition(".")[0],
        here.address,
        here.interface,
        here.why,
        look_up(name, here.address),
        "GLOO_SOCKET_IFNAME" in here.environ,
        tuple(found),
    )


def _knock_at_all(meeting: Meeting, here: Here) -> list[Knock]:
    me, count = meeting.members.rank, meeting.members.count
    door = Door(here.address)
    try:
        meeting.say("door", encode(door.at))
        heard = meeting.hear("door", range(count))
        doors = {rank: decode(Address, heard[rank]) for rank in heard}
        knocks = knock(doors, peers(me, count), meeting.members.id.encode()[:32])
        meeting.say("knocked")
        meeting.hear("knocked", range(count))  # until all have, others may still knock here
    finally:
        door.close()
    return knocks


def _skews(meeting: Meeting) -> dict[int, float]:
    """How far the others' clocks are off, seen from member 0: each tells the time between two looks at its clock."""
    others = meeting.members.others
    if meeting.members.rank != 0:
        meeting.hear("clock", [0])
        meeting.say("time", time.time())
        return {}
    before = time.time()
    meeting.say("clock")
    told = meeting.hear("time", others)
    after = time.time()
    return {rank: min(told[rank] - before, 0.0) + max(told[rank] - after, 0.0) for rank in told}
