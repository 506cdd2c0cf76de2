"""The totals of the training of a node in a round, for the event log and, while the round runs, for a file.

A node that dies cannot log them. So the first nodes of a round write them to files from time to time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpcelastic.agent.periodic import PeriodicTask
from hpcelastic.agent.session import Session
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import RoundTotals, Source
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.events import Event, TrainingTotals
from hpcelastic.protocol.state import Phase, State
from hpcelastic.storage import files
from hpcelastic.storage.events import event_line

_WRITERS = 3
"""Number of nodes that write files, so that the totals of a round survive the loss of two of them."""

_INTERVAL = 10.0
"""Seconds between two files of a node, at most."""

_FIRST = 1.0
"""Seconds until the first file of a round. Many rounds after faults are short."""

_CLOSE_TIMEOUT = 1.0
"""Seconds for which the end of an agent waits for its last file."""


def training_totals(page: ControlPage, round: int, ranks: Mapping[int, int]) -> TrainingTotals | None:
    """Return the totals of the worker with the most steps; None if none has written marks in the round.

    ``ranks`` has the ranks of the workers, by local rank.
    """
    found = [(totals, rank) for seat, rank in ranks.items() if (totals := page.marks(seat).totals(round)) is not None]
    if not found:
        return None
    event = _event(*max(found, key=lambda each: (each[0].steps, each[0].saving, -each[1])))
    losses = next((totals.losses for totals, _ in found if totals.losses), ())
    total = max(totals.total for totals, _ in found)
    return replace(event, total=total or None, losses=tuple((float(step), loss) for step, loss in losses))


def log_totals(log: Callable[[Event], None], page: ControlPage, part: Assignment) -> None:
    """Log the totals of a node in a round, whose workers have ended or are parked, if there are any."""
    totals = training_totals(page, part.round, {seat: part.rank_of(seat) for seat in part.local_ranks})
    if totals is not None:
        log(totals)


def _event(totals: RoundTotals, rank: int) -> TrainingTotals:
    first = totals.samples[0] if totals.samples else 0
    return TrainingTotals(
        round=totals.round,
        rank=rank,
        steps=totals.steps,
        before=totals.before,
        entered=_seconds(totals.entered),
        group=_seconds(totals.group),
        restored=_seconds(totals.restored),
        source=None if totals.source is Source.UNKNOWN else totals.source.name.lower(),
        first_step=_seconds(first),
        last_step=_seconds(totals.last_step),
        done=_seconds(totals.done),
        samples=tuple(_seconds(time - first) or 0.0 for time in totals.samples[1:]),
        saved=_seconds(totals.saved),
        saved_step=totals.saved_step if totals.saved else None,
        saves=totals.saves,
        saving=_seconds(totals.saving) or 0.0,
        compiling=_seconds(totals.compiling) or 0.0,
        other=_seconds(totals.other) or 0.0,
    )


def _seconds(time: int) -> float | None:
    """Return nanoseconds as seconds, with microseconds; None for 0."""
    return round(time, -3) / 1e9 if time else None


class TotalsWriter:
    """Writes the totals of the running round, and at its end, to a file, if this node is one of the first in it."""

    def __init__(self, session: Session, page: ControlPage, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._page = session, page
        self._task = PeriodicTask("training totals", _INTERVAL, clock, _FIRST)
        self._workers = WorkersOfRound(0)
        """The newest workers of a round."""

        self._written: TrainingTotals | None = None
        self._marked: TrainingTotals | None = None
        """The newest totals with marks, which stay in the file until the next round has marks."""

    def seconds_left(self) -> float | None:
        """Return the seconds until the next file; None if there is none to write."""
        return self._task.seconds_left()

    def observe(self, state: State) -> None:
        """Take account of the newest state of the run."""
        writers = [participant.node for participant in state.participants[:_WRITERS]]
        writes = state.phase is Phase.RUNNING and self._session.member.node in writers
        if self._task.planned and not writes:
            self._begin_file()
        self._task.plan(writes)

    def check(self, found: WorkersOfRound) -> None:
        """Write the file if that is due. Returns at once."""
        if found.workers:
            self._workers = found
        if self._task.is_due():
            self._begin_file()

    def close(self) -> None:
        """Wait for the last file, but not long."""
        self._task.close(_CLOSE_TIMEOUT)

    def _begin_file(self) -> None:
        ranks, round = {worker.local_rank: worker.rank for worker in self._workers.workers}, self._workers.round
        if not ranks or self._task.runs:
            return
        totals = training_totals(self._page, round, ranks)
        if totals is not None:
            self._marked = totals
        newest = totals or TrainingTotals(round=round, rank=min(ranks.values()), steps=0)
        if newest != self._written:
            self._written = newest
            lines = (self._marked, newest) if self._marked and self._marked is not newest else (newest,)
            self._task.begin(lambda: self._write(lines))

    def _write(self, lines: Sequence[TrainingTotals]) -> None:
        paths, member = self._session.spec.paths, self._session.member
        files.make_directory(paths.training_totals, within=paths.root)
        content = b"".join(event_line(totals, member.name) for totals in lines)
        files.publish(paths.totals_of(member.node), content, durable=False)
