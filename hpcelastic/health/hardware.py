"""Findings on the hardware of a node while its workers train. Pure: plain values."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class HardwareSeverity(str, Enum):
    """The consequence of a finding. A node leaves only if the other nodes are enough for a round."""

    NOTE = "note"
    """The finding is reported and logged. Nothing else follows."""

    LEAVE_AT_STEP = "leave at the end of a step"
    LEAVE = "leave at once"


@dataclass(frozen=True)
class HardwareFinding:
    """A change for the worse that was seen while workers train."""

    check: str
    seen: str
    severity: HardwareSeverity

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}"


class Source(Protocol):
    """A part of the hardware that is watched."""

    def look(self) -> Iterator[HardwareFinding]:
        """Yield what has changed for the worse since the last look. An error means that it cannot be watched."""
