"""The state with which a round begins: which one it is, who holds it, and who receives it from whom.

Pure. Each rank reports the newest state that is whole in its memory, and rank 0 the newest one on disk. All ranks make
the same choice from the same reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Held(NamedTuple):
    """A whole state; sorts by age. A later round has begun with the newest state of all earlier ones."""

    round: int
    """The round that has made the state."""

    step: int
    """The number of training steps in the state."""


@dataclass(frozen=True)
class Choice:
    """The state with which all ranks continue."""

    state: Held | None
    """None if there is none yet: training begins."""

    sources: tuple[int, ...] = ()
    """The ranks that hold it in memory. Empty if it is only on disk."""

    receivers: tuple[int, ...] = ()
    """The ranks that must receive it."""

    def source_of(self, part: int) -> int:
        """Return the rank that sends part number ``part`` of the state to all receivers."""
        return self.sources[part % len(self.sources)]


def choose(held: Sequence[Held | None], saved: Held | None) -> Choice:
    """Return the newest of the states that the ranks hold and the one that is ``saved`` on disk.

    A state in memory is preferred to the same state on disk.
    """
    newest = max((state for state in (*held, saved) if state is not None), default=None)
    sources = tuple(rank for rank, state in enumerate(held) if state == newest) if newest is not None else ()
    return Choice(newest, sources, tuple(rank for rank in range(len(held)) if rank not in sources))
