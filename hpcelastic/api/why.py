"""The explanation of the end of a round, or of a run, from its directory."""

import html
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcelastic.accounting import Account, account
from hpcelastic.accounting.evidence import FailureText, Link
from hpcelastic.accounting.explanation import Explanation, explain_round, worst_round
from hpcelastic.accounting.journal import SECOND, Journal
from hpcelastic.agent.failure_texts import describe_exit, describe_failure
from hpcelastic.api.accounts import read_journal
from hpcelastic.api.figures import duration
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import ConfigError
from hpcelastic.health.known_causes import Blame, is_echo
from hpcelastic.protocol.events import WorkerEnded, WorkersStarted
from hpcelastic.protocol.state import Cause
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.events import last_round_ended_by
from hpcelastic.storage.paths import RunPaths

_FAULTS = (Cause.WORKER.value, Cause.NODE.value)

_MOST_TEXTS = 32
"""Number of failed ranks of a round whose logs are read: those that failed first."""


_MOST_STOPPED = 2048
"""Number of stopped ranks of a round whose logs are read."""

_STOPPED = -signal.SIGTERM
"""The exit status of a worker that was stopped."""


@dataclass(frozen=True)
class Why:
    """Why a round of a run has ended. In a notebook it is shown as text."""

    run: str
    round: int
    """0 if the run has had no round."""

    cause: str
    """In one sentence."""

    id: str
    """The id of the known cause, or of the rule; empty if the cause is unknown."""

    known: bool
    blame: str
    """The part at fault: ``program``, ``node``, ``network``, ``filesystem``, ``scheduler``, ``user`` or ``unknown``."""

    certainty: str
    """``certain`` or ``likely``; empty if the cause is unknown."""

    node: str
    rank: int | None
    remedy: str
    chain: tuple[Link, ...]
    node_seconds: dict[str, float]
    """The cost of the fault, by category of node time."""

    stopped: float | None
    """Seconds from the fault to the first new step; None if there was none, or if no fault has ended the round."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        where = f"round {self.round} of {self.run}" if self.round else self.run
        certainty = f", {self.certainty}" if self.certainty else ""
        lines = [f"run      {where}", f"CAUSE    {self.cause}"]
        lines.append(f"BLAME    {self.blame}{f' {self.node}' if self.blame == Blame.NODE.value else ''}{certainty}")
        lines += list(_chain(self.chain))
        if self.node_seconds:
            parts = sorted(self.node_seconds.items(), key=lambda part: -part[1])
            listed = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts)
            stopped = "" if self.stopped is None else f"; {duration(self.stopped)} without a new step"
            lines.append(f"COST     {duration(sum(self.node_seconds.values()))} of node time: {listed}{stopped}")
        if self.remedy:
            lines.append(f"DO       {self.remedy}")
        return lines

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def why(run: RunReader, round: int | None = None) -> Why:
    """Return why a round of a run has ended; by default the last one that a fault has ended, else the newest one.

    Raises ConfigError if there is no such round, and StoreError if the files of the run cannot be read.
    """
    state = read_state(run.backend())
    if round is not None and not 1 <= round <= state.round:
        known = f"rounds 1 to {state.round}" if state.round else "no rounds yet"
        raise ConfigError(f"{run.paths.root}: has no round {round}; it has {known}")
    chosen = [round] if round else [last_round_ended_by(run.paths.events, _FAULTS) or state.round, state.round]
    # Rounds long ago have nothing to do with it, and reading all of them takes long.
    journal = read_journal(run.paths, state, {number + after for number in chosen for after in (0, 1)})
    accounts = account(journal)
    number = round or worst_round(accounts)
    if number is None or number not in accounts.rounds:
        return _without_evidence(run.paths.root.name, round or 0, state.reason)
    return explained_round(run.paths, journal, accounts, number)


def why_all(run: RunReader) -> list[Why]:
    """Return why each round of a run has ended. Raises StoreError if the files of the run cannot be read."""
    state = read_state(run.backend())
    journal = read_journal(run.paths, state)
    accounts = account(journal)
    if not accounts.rounds:
        return [_without_evidence(run.paths.root.name, 0, state.reason)]
    return [explained_round(run.paths, journal, accounts, number) for number in sorted(accounts.rounds)]


def explained_round(paths: RunPaths, journal: Journal, accounts: Account, number: int) -> Why:
    """Return why a round has ended, with what its workers have left in their logs."""
    explanation = explain_round(journal, accounts, number, failure_texts(paths, journal, number))
    return _with_cost(paths.root.name, explanation, accounts)


def failure_texts(paths: RunPaths, journal: Journal, round: int) -> dict[int, FailureText]:
    """Return what the workers have left that failed first in a round, by rank.

    If all of them only noticed another failure, this includes workers that were stopped while an exception ended them.
    """
    failed = [
        (entry.time, entry.event.rank, entry.event.exit_code)
        for log in journal.logs
        for entry in log.entries
        if isinstance(entry.event, WorkerEnded) and entry.event.round == round and entry.event.exit_code
    ]
    found = {rank: _text(paths, round, rank, exit_code) for _, rank, exit_code in sorted(failed)[:_MOST_TEXTS]}
    if all(is_echo(text.message) for text in found.values()):
        for rank in sorted(_ranks(journal, round) - {rank for _, rank, _ in failed})[:_MOST_STOPPED]:
            text = _text(paths, round, rank, _STOPPED)
            if text.message != describe_exit(_STOPPED) and not is_echo(text.message):
                found[rank] = text
    return found


def _ranks(journal: Journal, round: int) -> set[int]:
    """Return the ranks of the workers that were started in a round."""
    events = (entry.event for log in journal.logs for entry in log.entries)
    return {rank for each in events if isinstance(each, WorkersStarted) and each.round == round for rank in each.pids}


def _text(paths: RunPaths, round: int, rank: int, exit_code: int) -> FailureText:
    """Return what a worker has left that has ended with ``exit_code``."""
    error_file, log = paths.error_file(round, rank), paths.log(round, rank, "err")
    message, traceback, _ = describe_failure(exit_code, error_file, log)
    path = log if log.exists() else error_file
    return FailureText(message, traceback, _relative(path, paths.root) if path.exists() else "")


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _without_evidence(run: str, round: int, reason: str) -> Why:
    remedy = "see hpcelastic status, and the output of the agents"
    if round:
        remedy += "; a long run keeps the events of its last rounds only (logs.keep_rounds)"
    cause = f"The event logs tell nothing about round {round}." if round else f"The run has had no round: {reason}."
    return Why(run, round, cause, "", False, Blame.UNKNOWN.value, "", "", None, remedy, (), {}, None)


def _with_cost(run: str, explanation: Explanation, accounts: Account) -> Why:
    fault = next((each for each in accounts.faults if each.round == explanation.round), None)
    cost = {category.value: micros / SECOND for category, micros in fault.cost.items() if micros} if fault else {}
    return Why(
        run=run,
        round=explanation.round,
        cause=explanation.cause,
        id=explanation.id,
        known=explanation.known,
        blame=explanation.blame.value,
        certainty=explanation.certainty.value if explanation.certainty else "",
        node=explanation.node,
        rank=explanation.rank,
        remedy=explanation.remedy,
        chain=explanation.chain,
        node_seconds=cost,
        stopped=fault.stopped / SECOND if fault and fault.stopped is not None else None,
    )


def _chain(links: tuple[Link, ...]) -> Iterator[str]:
    """Yield a line for each link: the time of the first one, and the seconds from it to the others."""
    width = max((len(link.node) for link in links), default=0)
    for i, link in enumerate(links):
        clock = datetime.fromtimestamp(link.time).strftime("%H:%M:%S.%f")[:12]
        time = clock if i == 0 else f"{link.time - links[0].time:+.3f} s"
        evidence = f"  [{link.evidence}]" if link.evidence else ""
        yield f"{'CHAIN' if i == 0 else '':8} {time:>12}  {link.node:{width}}  {link.text}{evidence}"
