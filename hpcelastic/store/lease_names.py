"""The name of a lease, ``NODE~WORD~BEAT~SUMMARY.json``: one listing tells how all nodes stand, and who has moved.

Pure. WORD counts what the node has said, BEAT its renewals, through all words. SUMMARY holds the small fields of
`Member` in their order, with ``,`` between them, then ``+`` and the incarnation of each of its own dead predecessors. A
last ``+`` says that the file's content, the JSON of the whole member, holds more than that. Where a summary does not
fit it is a mere ``+``; so is one whose fields are not ours, a newer writer's, to be read.
"""

import heapq
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import quote, unquote

from hpcelastic.protocol.state import Member, Stand, name_of

LONGEST = 230
"""Bytes of a name, with room for as many beats as may come: its draft's name is longer, and 255 is what is allowed."""

_END = ".json"
_ROOM = 2 * 10 + len("~~~") + len(_END)
"""What is taken by all but the node and the summary, if both counters have ten digits."""

_HINTS = get_type_hints(Member)
_SMALL = {field.name: _HINTS[field.name] for field in fields(Member) if _HINTS[field.name] in (int, str, Stand)}
for _name in ("node", "process"):  # the name begins with the one; nobody decides by the other
    del _SMALL[_name]
_STAND, _ORDER = (list(_SMALL).index(field) for field in ("stand", "order"))
_LARGE = {
    field.name: None if field.default is MISSING else field.default
    for field in fields(Member)
    if field.name not in (*_SMALL, "node", "process", "dead")
}
"""What is in the content alone, and its default."""


class LeaseName(NamedTuple):
    """A name that was listed; of one node's names the greatest counts."""

    node: str
    word: int
    """-1 in a name of a format unknown here, with ``beat``: nothing but its change has a meaning."""

    beat: int
    text: str

    def follows(self, other: "LeaseName") -> bool:
        """Whether the node has renewed its lease since it was ``other``; an older name comes from a late listing."""
        return self > other if self.word >= 0 else self != other


def parse(text: str) -> LeaseName | None:
    """What a name in the directory of leases means; None if it is no lease's."""
    if not text.endswith(_END):
        return None
    try:
        node, word, beat, _ = text.split("~", 3)
        return LeaseName(node, int(word), int(beat), text) if "@" in node else None
    except ValueError:
        node, tilde, _ = text.partition("~")
        return LeaseName(node, -1, -1, text) if "@" in node and tilde else None


def newest(texts: list[str]) -> dict[str, LeaseName]:
    """The name that counts of each node in a listing: who dies amid a renewal leaves two."""
    found: dict[str, LeaseName] = {}
    for text in texts:
        name = parse(text)
        if name is not None:
            other = found.setdefault(name.node, name)
            if name is not other and name > other:
                found[name.node] = name
    return found


def foremost(texts: Iterable[str], count: int) -> list[Member]:
    """Of the nodes in a listing that are ready, the ``count`` first by their order: a glance, however many there are.

    A node may be there twice, as it was and as it is; a name that is not ours to understand is left out.
    """
    found = []
    for text in texts:
        values = text.rpartition("~")[2].split(",")
        if len(values) == len(_SMALL) and values[_STAND] == Stand.READY.value and values[_ORDER].isdecimal():
            found.append((int(values[_ORDER]), text))
    names = [parse(text) for _, text in heapq.nsmallest(count, found)]
    members = [member_of(name)[0] for name in names if name]
    return [member for member in members if member]


def written(node: str, word: int, beat: int, summary: str) -> str:
    """The name of a lease."""
    return f"{node}~{word}~{beat}~{summary}{_END}"


def summary(member: Member) -> str:
    """The part of a lease's name that holds what ``member`` says, as far as it fits."""
    room = LONGEST - _ROOM - len(member.node)
    said = ",".join(_quoted(getattr(member, name)) for name in _SMALL)
    if len(said) + 1 > room:
        return "+"
    whole = all(getattr(member, name) == default for name, default in _LARGE.items())
    for node in member.dead:
        incarnation = _quoted(node[len(member.name) + 1 :])
        ours = incarnation and node.startswith(f"{member.name}@") and name_of(node) == member.name
        if ours and len(said) + len(incarnation) + 2 <= room:
            said += f"+{incarnation}"
        else:
            whole = False
    return said if whole else f"{said}+"


def member_of(name: LeaseName) -> tuple[Member | None, bool]:
    """What a node says by its lease's name, without its process; and whether that is all that it says."""
    said, *dead = name.text[: -len(_END)].split("~", 3)[-1].split("+")
    values = said.split(",")
    if name.word < 0 or len(values) != len(_SMALL):
        return None, False
    try:
        known: dict[str, Any] = {
            field: _value(kind, text) for (field, kind), text in zip(_SMALL.items(), values, strict=True)
        }
    except ValueError:
        return None, False
    predecessors = tuple(f"{name_of(name.node)}@{_text(incarnation)}" for incarnation in dead if incarnation)
    return Member(node=name.node, dead=predecessors, **known), "" not in dead


def _quoted(value: int | str | Stand) -> str:
    text = value.value if isinstance(value, Stand) else str(value)
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E")


def _text(quoted: str) -> str:
    return unquote(quoted, errors="surrogatepass")


def _value(kind: type, quoted: str) -> Any:
    text = _text(quoted)
    return text if kind is str else kind(text)
