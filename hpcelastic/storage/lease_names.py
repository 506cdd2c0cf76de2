"""The name of a lease, ``NODE~REVISION~HEARTBEAT-DURATION~SUMMARY.json``. One listing shows the states of all nodes.

Pure. REVISION counts the publications of the member, HEARTBEAT its renewals through all revisions. DURATION is that of
the lease, in milliseconds. It is in the name, because an observer must know it with each renewal. SUMMARY holds the
small fields of `Member` in their order, separated by ``,``. Then ``+`` and an incarnation follow for each of the node's
own dead predecessors, and ``+`` and a node for each other one that it knows to be dead. The last fields are left out if
they have their defaults. A final ``+`` means that the file's content, the JSON of the whole member, holds more. A
summary that does not fit is a single ``+``. A summary with unknown fields, from a newer writer, is treated in the same
way.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import quote, unquote

from hpcelastic.protocol.leaders import precedence
from hpcelastic.protocol.state import Member, NodeState, name_of

MAX_NAME_LENGTH = 230
"""The maximum length of a name in bytes. The name of its draft is longer, and filesystems allow 255 bytes."""

_SUFFIX = ".json"
_INCOMPLETE = f"+{_SUFFIX}"
"""The end of a name that does not hold all of its member; see `is_complete`."""

_STATES = {state.value: state for state in NodeState}
_RESERVED_LENGTH = 2 * 10 + len("~~-12345678~") + len(_SUFFIX)
"""The length of all parts except the node and the summary, if both counters have ten digits."""

_HINTS = get_type_hints(Member)
_NAME_FIELDS = {
    field.name: _HINTS[field.name] for field in fields(Member) if _HINTS[field.name] in (int, str, bool, NodeState)
}
for _name in ("node", "process"):  # the name begins with the node; no decision depends on the process
    del _NAME_FIELDS[_name]
_REQUIRED = list(_NAME_FIELDS).index("progress") + 1
"""The number of fields that every name has."""

_COUNTS = range(_REQUIRED, len(_NAME_FIELDS) + 1)
"""The possible numbers of fields."""

_DEFAULTS = {field.name: field.default for field in fields(Member)}
_BLANK = Member("", NodeState.READY, round=0, local_world_size=0, address="", port=0)
"""A member to be filled. Nothing reads its cached property, which would be copied."""

_NODE_STATE_INDEX, _ORDER_INDEX, _JOB_NODES_INDEX = (
    list(_NAME_FIELDS).index(field) for field in ("node_state", "order", "job_nodes")
)
_CONTENT_FIELDS = {
    field.name: None if field.default is MISSING else field.default
    for field in fields(Member)
    if field.name not in (*_NAME_FIELDS, "node", "process", "dead")
}
"""The fields that only the content holds, with their defaults."""


class LeaseName(NamedTuple):
    """A listed name. If a node has several names, the greatest counts."""

    node: str
    revision: int
    """-1, like ``heartbeat``, in a name of an unknown format. Only a change of such a name has a meaning."""

    heartbeat: int
    text: str
    milliseconds: str = ""
    """The duration of the lease; empty if the name does not tell it, as those of older releases."""

    @property
    def duration(self) -> float | None:
        """The duration of the lease in seconds; None if the name does not tell it."""
        return int(self.milliseconds) / 1000 if self.milliseconds.isdecimal() else None

    def follows(self, other: "LeaseName") -> bool:
        """Return True if the node has renewed its lease after ``other``. An older name comes from a late listing."""
        return self > other if self.revision >= 0 else self != other


def parse(text: str) -> LeaseName | None:
    """Parse a name in the directory of leases; return None if it is not the name of a lease."""
    if not text.endswith(_SUFFIX):
        return None
    try:
        node, revision, renewal, _ = text.split("~", 3)
        heartbeat, _, duration = renewal.partition("-")
        return LeaseName(node, int(revision), int(heartbeat), text, duration) if "@" in node else None
    except ValueError:
        node, tilde, _ = text.partition("~")
        return LeaseName(node, -1, -1, text) if "@" in node and tilde else None


def newest(
    texts: Iterable[str],
    known: Mapping[str, LeaseName] = {},  # not changed
    found: Mapping[str, LeaseName] = {},  # not changed
) -> dict[str, LeaseName]:
    """Return the greatest name of each node in a listing. A node that dies during a renewal leaves two names.

    ``known`` has names that were parsed before, because most names of a long listing are those of the listing before.
    ``found`` has the names of another part of the listing.
    """
    found = dict(found)
    for text in texts:
        name = known[text] if text in known else parse(text)
        if name is not None:
            other = found.setdefault(name.node, name)
            if name is not other and name > other:
                found[name.node] = name
    return found


def first_ready_members(texts: Collection[str], count: int) -> list[Member]:
    """Return the first ``count`` ready nodes of a listing in the order in which they lead, quickly even for long
    listings.

    A node may occur twice, with its old and its new name. Names of an unknown format are skipped.
    """
    found, ready = [], NodeState.READY.value
    for text in texts:
        values = text.rpartition("~")[2].split(",")
        if len(values) not in _COUNTS or values[_NODE_STATE_INDEX] != ready:
            continue
        order, job_nodes = values[_ORDER_INDEX], values[_JOB_NODES_INDEX]
        if order.isdecimal() and job_nodes.isdecimal():
            key = precedence(text.partition("~")[0], int(order), int(job_nodes), len(texts))
            found.append((key, text))
    names = [parse(text) for _, text in heapq.nsmallest(count, found)]
    members = [member_of(name)[0] for name in names if name]
    return [member for member in members if member]


def lease_name(node: str, revision: int, heartbeat: int, summary: str, duration: float | None = None) -> str:
    """Format the name of a lease. Observers take the longest possible duration for None."""
    renewal = f"{heartbeat}" if duration is None else f"{heartbeat}-{math.ceil(duration * 1000)}"
    return f"{node}~{revision}~{renewal}~{summary}{_SUFFIX}"


def summary(member: Member) -> str:
    """Return the part of a lease's name that holds the fields of ``member``, as far as they fit."""
    available = MAX_NAME_LENGTH - _RESERVED_LENGTH - len(member.node)
    names = list(_NAME_FIELDS)
    while len(names) > _REQUIRED and getattr(member, names[-1]) == _DEFAULTS[names[-1]]:
        names.pop()
    field_text = ",".join(_quoted(getattr(member, name)) for name in names)
    if len(field_text) + 1 > available:
        return "+"
    complete = all(getattr(member, name) == default for name, default in _CONTENT_FIELDS.items())
    for node in member.dead:
        text = _dead_text(node, member.name)
        if text and len(field_text) + len(text) + 2 <= available:
            field_text += f"+{text}"
        else:
            complete = False
    return field_text if complete else f"{field_text}+"


def _dead_text(node: str, own_name: str) -> str:
    """Return how a name tells that ``node`` is dead: the incarnation of a predecessor, else the node. Only the latter
    has an ``@``. Empty if a name cannot tell it."""
    name, _, incarnation = node.rpartition("@")
    if not (name and incarnation):
        return ""
    return _quoted(incarnation if name == own_name else node)


def is_complete(summary: str) -> bool:
    """Return whether a summary holds all of its member, except the process."""
    return not summary.endswith("+")


def member_of(name: LeaseName) -> tuple[Member | None, bool]:
    """Return the member in a lease's name, without its process, and whether the name holds all of the member."""
    field_text, *dead = name.text[: -len(_SUFFIX)].split("~", 3)[-1].split("+")
    values = field_text.split(",")
    if name.revision < 0 or len(values) not in _COUNTS:
        return None, False
    try:
        known: dict[str, Any] = {
            field: read(text) for (field, read), text in zip(_READERS.items(), values, strict=False)
        }
    except ValueError:
        return None, False
    nodes = (_text(text) for text in dead if text)
    gone = tuple(node if "@" in node else f"{name_of(name.node)}@{node}" for node in nodes)
    return _replaced(_BLANK, {"node": name.node, "dead": gone, **known}), "" not in dead


def same_but_state(name: LeaseName, before: LeaseName, member: Member) -> Member | None:
    """Return the member in ``name`` if only its state and its round differ from those of ``member``, which is that in
    ``before``, and if both names hold all of it; otherwise None.

    After each change of the round that is so for nearly all nodes, and `member_of` takes five times as long.
    """
    if name.revision < 0 or name.text.endswith(_INCOMPLETE):
        return None
    try:
        node_state, round, rest = name.text.rpartition("~")[2].split(",", 2)
        if before.text.rpartition("~")[2].split(",", 2)[2] != rest:
            return None
        return _replaced(member, {"node_state": _STATES[node_state], "round": int(round)})
    except (LookupError, ValueError):
        return None


def _replaced(member: Member, values: dict[str, Any]) -> Member:
    """Return ``member`` with other ``values``. `dataclasses.replace` sets each of the many fields anew."""
    found = object.__new__(Member)
    object.__setattr__(found, "__dict__", member.__dict__ | values)
    return found


def _quoted(value: int | str | NodeState) -> str:
    if isinstance(value, int):
        return str(int(value))
    text = value.value if isinstance(value, NodeState) else value
    if text.isascii() and text.isalnum():
        return text
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E")


def _text(quoted: str) -> str:
    return unquote(quoted, errors="surrogatepass") if "%" in quoted else quoted


_READERS: dict[str, Callable[[str], Any]] = {
    name: {str: _text, bool: lambda text: bool(int(text))}.get(kind, kind) for name, kind in _NAME_FIELDS.items()
}
"""Functions that read the fields of a name. An agent reads a name of each node, so that these functions are fast."""
