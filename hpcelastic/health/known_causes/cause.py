"""A known cause of failures. Pure."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from hpcelastic.health.incidents import IncidentKind


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

    def matches(self, text: str) -> bool:
        return self._compiled.search(text) is not None
