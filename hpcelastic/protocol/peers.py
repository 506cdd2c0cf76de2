"""The peers of an agent, the news about them, and the topology of the links between the members of a round.

Pure: values only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isqrt
from typing import NamedTuple, TypeAlias


class Peer(NamedTuple):
    """The network endpoint of a node's agent, for notifications and links."""

    node: str
    """``NAME@INCARNATION``."""

    address: str
    """IPv4 or IPv6, numeric. Names are never resolved."""

    port: int
    """For UDP and TCP; 0 if it has none, and then the peer is skipped."""


@dataclass(frozen=True)
class Notification:
    """Another node reports news, and that ``version`` of the register exists."""

    version: int
    change: bytes = b""
    """The difference from the version before, if it was sent; see `hpcelastic.protocol.changes`."""


@dataclass(frozen=True)
class PeerLinkLost:
    """The link to a neighbour broke. The neighbour may take this node for dead, so this node should renew its lease."""

    node: str


@dataclass(frozen=True)
class PeerRefused:
    """The neighbour's kernel reports that no process holds the neighbour's port any more.

    Repeated about every 0.5 s while this is so.
    """

    node: str


@dataclass(frozen=True)
class PeerSilent:
    """Heartbeats of a neighbour are missing, which proves nothing. Repeated about every 0.5 s while this is so."""

    node: str


@dataclass(frozen=True)
class PeerHeard:
    """Heartbeats arrive again after `PeerSilent`, or a link is made again after `PeerLinkLost`."""

    node: str


News: TypeAlias = Notification | PeerLinkLost | PeerRefused | PeerSilent | PeerHeard


def far(count: int) -> int:
    """Return the distance between linked members in a ring of ``count``: the first power of two from sqrt(count) on.

    If sqrt(count) consecutive members are lost together with their switch, each of them still has a neighbour that is
    left and detects its loss. The distance rarely changes with ``count``: otherwise all members would make new links
    after the loss of one.
    """
    return 1 << (isqrt(count) - 1).bit_length()


def neighbours(index: int, count: int) -> list[int]:
    """Return the members that member ``index`` of a ring of ``count`` dials: the next, and one that is `far` ahead.

    Links work in both directions, so up to four members watch each member.
    """
    return [there for there in dict.fromkeys((index + offset) % count for offset in (1, far(count))) if there != index]


def linked(index: int, count: int) -> list[int]:
    """Return all members that share a link with member ``index``, in either direction.

    Those that are far away come first, because they are rarely lost with it.
    """
    offsets = (far(count), -far(count), 1, -1)
    return [there for there in dict.fromkeys((index + offset) % count for offset in offsets) if there != index]


def buddy(index: int, topologies: Sequence[str]) -> int | None:
    """Return the member of a round that has copies of the snapshots of member ``index``; None for the only member.

    ``topologies`` has the switches above each member. Each member has the copies of one other. If the members are in
    the order of their switches, the two are under different switches as far as possible, so that the loss of a switch
    takes only one of them.
    """
    count = len(topologies)
    longest = max(len(list(members)) for _, members in groupby(topologies))
    return (index + (longest if longest < count else 1)) % count if count > 1 else None
