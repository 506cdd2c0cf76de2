"""Who is rung and watched, and what there is to tell. Pure: values, and the ring that links the members of a round."""

from dataclasses import dataclass
from math import isqrt
from typing import TypeAlias


@dataclass(frozen=True)
class Peer:
    """Where a node's agent is rung and watched."""

    node: str
    """``NAME@INCARNATION``."""

    address: str
    """IPv4 or IPv6, numeric: no name is ever looked up."""

    port: int
    """For UDP and TCP; 0 if it has none, and then the peer is skipped."""


@dataclass(frozen=True)
class Rung:
    """Somebody says that there is something new; ``version`` of the register is there."""

    version: int


@dataclass(frozen=True)
class Shaken:
    """A link to a neighbour broke: it may think that we died, so the owner should show that it lives."""

    node: str


@dataclass(frozen=True)
class Refused:
    """No process that holds the neighbour's port is left, says its kernel; told again about every 0.5 s while so."""

    node: str


@dataclass(frozen=True)
class Silent:
    """Pulses of a neighbour are missed, which proves nothing; told again about every 0.5 s while so."""

    node: str


@dataclass(frozen=True)
class Heard:
    """Pulses come again after `Silent`."""

    node: str


News: TypeAlias = Rung | Shaken | Refused | Silent | Heard


def neighbours(index: int, count: int) -> list[int]:
    """Whom member ``index`` of a ring of ``count`` links to: the next one, and one about sqrt(count) further on.

    Links serve both ways, so up to four watch each member; and where sqrt(count) members in a row are lost with their
    switch, each leaves a witness.
    """
    return [
        there for there in dict.fromkeys((index + offset) % count for offset in (1, isqrt(count))) if there != index
    ]


def linked(index: int, count: int) -> list[int]:
    """All with whom member ``index`` shares a link, whoever is whose neighbour."""
    offsets = (1, isqrt(count), -1, -isqrt(count))
    return [there for there in dict.fromkeys((index + offset) % count for offset in offsets) if there != index]
