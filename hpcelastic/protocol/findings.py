"""Findings about the training: failures that were charged, returns to older states, hangs and stragglers.

Pure: values only.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Charge:
    """The time from which the restart budget is refilled: that of the last failure, or of the last refill after it."""

    time: float
    """Seconds since the epoch, on the clock of the node that has reported a failure."""

    progress: int
    """The highest step that workers had reported as saved at the last failure; -1 if they had reported none."""

    failure: str = ""
    """The part of the last failure that a repetition has in common with it; empty if a new attempt may help."""

    repeats: int = 1
    """How often in a row this failure has occurred."""


HangAction: TypeAlias = Literal["", "none", "report", "restart", "exclude"]


@dataclass(frozen=True)
class Hang:
    """An examination of a round that makes no progress; see `hpcelastic.protocol.hangs`."""

    number: int
    """Examinations of a run are numbered from 1."""

    round: int
    examiner: str
    """The node that collects the reports of all nodes, and concludes the examination."""

    verdict: str = ""
    """The result in one line. Empty as long as the examination is not concluded."""

    ranks: tuple[int, ...] = ()
    """The ranks that the others wait for. Empty if they are unknown."""

    action: HangAction = ""
    """The action of the agents. ``none``: it is no hang. ``report``: they report it. ``restart``: they end the round.
    ``exclude``: they end the round, and the nodes of the ranks stay out from then on. Empty as long as the examination
    is not concluded."""


@dataclass(frozen=True)
class Slow:
    """The stragglers of a round; see `hpcelastic.health.stragglers`."""

    round: int
    ranks: tuple[int, ...] = ()
    text: str = ""
    """The finding in one line; empty if no rank is slow any more."""


@dataclass(frozen=True)
class RollbackDemand:
    """The demand of a worker that training returns to an older state, because the newest one is poisoned."""

    failed_step: int
    """The number of steps that were complete when the worker found that."""

    step: int
    """The number of steps in the state to which training returns."""


@dataclass(frozen=True)
class Rollback:
    """The return of a training to an older state; see `hpcelastic.protocol.rollback`."""

    round: int
    """The round that had the poisoned state."""

    step: int
    """States of this round and of earlier ones that have more steps are not used any more."""

    failed_step: int
    """The number of complete steps at which the state was found to be poisoned."""

    number: int
    """How often in a row training has returned because of this step."""

    def excludes(self, round: int, step: int) -> bool:
        """Return whether the state that ``round`` had after ``step`` steps is not used any more."""
        return round <= self.round and step > self.step
