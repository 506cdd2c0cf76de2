"""A known cause of failures. Pure."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from hpcelastic.health.incidents import IncidentKind

ELSEWHERE = "look for the first failure of another rank: hpcelastic status"
"""The remedy for an echo."""


class Blame(Enum):
    """The part at fault."""

    PROGRAM = "program"
    """The script, its data, its settings, or its environment."""

    NODE = "node"
    NETWORK = "network"
    FILESYSTEM = "filesystem"
    SCHEDULER = "scheduler"
    USER = "user"
    """A person has asked for it."""

    NONE = "none"
    """Nothing was wrong."""

    UNKNOWN = "unknown"


class Certainty(Enum):
    """How much the message says about the cause."""

    CERTAIN = "certain"
    LIKELY = "likely"

    ECHO = "echo"
    """The message is what other ranks see of a failure elsewhere."""


class Weight(Enum):
    """How much a message counts beside others in the log of a worker."""

    DETAIL = "detail"
    """It tells more than the final message, wherever it stands."""

    USUAL = "usual"
    VAGUE = "vague"
    """It only tells how the process has ended, or that another library has failed."""


@dataclass(frozen=True)
class KnownCause:
    """A cause of failures, and how its message is recognised."""

    id: str
    pattern: str
    """A regular expression, which is searched in the message and the traceback without regard to case."""

    text: str
    """The event, in one sentence."""

    blame: Blame
    certainty: Certainty
    remedy: str
    """The action for the user, in one sentence."""

    source: str
    """Where the message and its meaning are documented."""

    incident: IncidentKind | None = None
    """The incident that is recorded for the node; None if the machine is not suspected."""

    weight: Weight = Weight.USUAL

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _words(self) -> tuple[str, ...]:
        return necessary_words(self.pattern)

    def matches(self, text: str, lower: str | None = None) -> bool:
        """Return whether the pattern is found in ``text``. ``lower`` is the text in lower case, if it is at hand."""
        lower = text.lower() if lower is None else lower
        return any(word in lower for word in self._words) and self._compiled.search(text) is not None


_TOKEN = re.compile(
    r"""(?P<literal>(?:[a-z0-9 _:;,'"/=<>@\#%&~`!-]|\\[^a-z0-9\s])+)|(?P<repeat>[?*+]|\{\d*,?\d*\})|"""
    r"""\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|(?P<mark>[()|])|.""",
    re.IGNORECASE | re.DOTALL,
)
"""A part of a regular expression: text that stands for itself, a repetition, a set, an escape, a mark, or a sign."""


def necessary_words(pattern: str) -> tuple[str, ...]:
    """Return texts in lower case, one of which is in each text in which the regular expression is found.

    The search for a text is much faster than that for an expression, so most expressions are never compiled. The text
    of an alternative is the longest one outside of groups. It is empty if there is none.

    Examples:
        >>> necessary_words(r"out of memory|\bXids?\b.*(?:48|63)|(?:a|b)")
        ('out of memory', 'xid', '')
    """
    words, longest, last, depth = [], "", "", 0
    for token in _TOKEN.finditer(pattern + "|"):
        kind, text = token.lastgroup, token[0]
        if kind == "repeat":
            last = last[:-1]  # it may be absent
        longest, last = max(longest, last, key=len), ""
        if kind == "literal" and not depth:
            last = re.sub(r"\\(.)", r"\1", text).lower()
        elif kind == "mark":
            depth += {"(": 1, ")": -1}.get(text, 0)
            if text == "|" and not depth:
                words.append(longest)
                longest = ""
    return tuple(words)
