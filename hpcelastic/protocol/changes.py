"""The difference between a state and the next one, which a notification brings to nodes that know the first.

Pure. With it a node follows a new version without reading the register, in which a state of ten thousand nodes has
0.6 MB. A change holds the fields that differ, in their JSON form. The members are a list of parts: ``[SKIP, COUNT]``
for COUNT members that stay, after SKIP that do not, counted from the last part of this kind; and a row for each other
member. Such small numbers can be compressed, so that the loss of 1 % of ten thousand nodes fits into a datagram. A
change that does not fit is not sent, and the nodes read the register instead.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from hpcelastic.protocol.codec import DecodeError, decode, encode, updated
from hpcelastic.protocol.rows import Rows, column
from hpcelastic.protocol.state import Participant, State

MAX_LENGTH = 900
"""Bytes of a packed change. With the rest of its datagram it fits into the least MTU of IPv6."""

_MAX_UNPACKED = 64 * 1024
_MEMBERS = "participants"


def difference(before: State, after: State) -> dict[str, Any]:
    """Return the change from one state to another, in its JSON form."""
    names = [f.name for f in fields(State) if getattr(before, f.name) != getattr(after, f.name)]
    change = {name: encode(getattr(after, name)) for name in names if name != _MEMBERS}
    return change | ({_MEMBERS: list(_parts(before, after))} if _MEMBERS in names else {})


def changed(before: State, change: Any) -> State:
    """Return the state that follows ``before`` by a change. Raises DecodeError if the change is not valid."""
    if not isinstance(change, dict):
        raise DecodeError("the change is not an object")
    rest = {name: value for name, value in change.items() if name != _MEMBERS}
    members = _members(before.participants, change[_MEMBERS]) if _MEMBERS in change else before.participants
    return updated(before, rest, participants=members)


def pack(change: dict[str, Any]) -> bytes:
    """Return a change as bytes; none if it is longer than `MAX_LENGTH`."""
    packed = zlib.compress(json.dumps(change, separators=(",", ":")).encode())
    return packed if len(packed) <= MAX_LENGTH else b""


def unpack(packed: bytes) -> Any:
    """Return the change in its JSON form. Raises DecodeError if ``packed`` is no change."""
    try:
        return json.loads(zlib.decompressobj().decompress(packed, _MAX_UNPACKED))
    except (ValueError, zlib.error) as error:
        raise DecodeError(f"the change cannot be unpacked: {error}") from None


def _parts(before: State, after: State) -> Iterator[list[Any]]:
    """Return the members of a state as parts; see above."""
    rows, next_rows = encode(before.participants), encode(after.participants)
    ranks = map(before.ranks.get, column(after.participants, "node"))
    stays = [
        rank if rank is not None and rows[rank] == row else None for rank, row in zip(ranks, next_rows, strict=True)
    ]
    runs = groupby(enumerate(stays), key=lambda it: None if it[1] is None else it[1] - it[0])
    end = 0
    for offset, run in runs:
        places = [place for place, _ in run]
        if offset is None:
            yield from (next_rows[place] for place in places)
        else:
            yield [places[0] + offset - end, len(places)]
            end = places[-1] + 1 + offset


def _members(before: Sequence[Participant], parts: Any) -> Sequence[Participant]:
    """Return the members that follow those ``before``. Members that stay as they are need not be decoded."""
    rows = before.rows if isinstance(before, Rows) else None
    stay: Sequence[Any] = before if rows is None else rows
    found, end = list[Any](), 0
    for part in parts if isinstance(parts, list) else [None]:
        if isinstance(part, list) and len(part) == 2 and all(isinstance(rank, int) for rank in part):
            first, end = end + part[0], end + sum(part)
            if not 0 <= first < end <= len(before):
                raise DecodeError(f"the change names the members {first} to {end} of {len(before)}")
            found += stay[first:end]
        else:
            member = decode(Participant, part)
            found.append(member if rows is None else encode(member))
    return tuple(found) if rows is None else Rows(Participant, found)
