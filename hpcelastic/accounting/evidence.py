"""The events that have to do with the end of a round, and the chain of those that led to it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hpcelastic.accounting.account import Account
from hpcelastic.accounting.descriptions import describe_sign
from hpcelastic.accounting.journal import SECOND, Entry, Journal, Log, merged
from hpcelastic.accounting.rounds import Round
from hpcelastic.health.known_causes import Certainty, KnownCause, explain
from hpcelastic.protocol.events import Decided, HangExamined, Leaving, PeerSuspected, WorkerEnded, WorkersStarted
from hpcelastic.protocol.state import Phase

E = TypeVar("E")

_LONGEST_CHAIN = 12
"""Number of links that are shown."""

_LONGEST_LINE = 160
"""Characters of a text that is shown."""

_MOST_OF_A_KIND = 3
"""Number of links of the same kind."""

_BEFORE, _AFTER = 60 * SECOND, 5 * SECOND
"""The time before and after the end of a round in which events without a round may have to do with it."""


@dataclass(frozen=True)
class FailureText:
    """The failure of a worker, in its own words."""

    message: str
    traceback: str = ""
    path: str = ""
    """The file, relative to the run's directory."""

    @property
    def has_exception(self) -> bool:
        """Whether an exception is the last that the worker has written."""
        exception = self.message.rpartition(" (")[0]
        return bool(exception) and self.traceback.rstrip().endswith(exception)


@dataclass(frozen=True)
class Link:
    """An event in the chain that led to the end of a round."""

    time: float
    """Seconds since the epoch, on the clock of the run's filesystem."""

    node: str
    text: str
    evidence: str
    """The file and line, relative to the run's directory."""


@dataclass(frozen=True)
class FailedWorker:
    """A worker that has failed."""

    time: int
    node: str
    rank: int
    exit_code: int
    text: FailureText
    known: KnownCause | None

    @property
    def is_echo(self) -> bool:
        return self.known is not None and self.known.certainty is Certainty.ECHO


class RoundEvidence:
    """All events that may have to do with the end of a round."""

    def __init__(self, journal: Journal, account: Account, number: int, texts: Mapping[int, FailureText]) -> None:
        rounds = account.rounds
        self.round, self._texts = rounds[number], texts
        self.abandoned, self.jobs = account.abandoned, journal.jobs
        round = self.round
        end = round.ended
        if end is None:
            end = journal.last_sign if account.abandoned and journal.last_sign is not None else journal.end
        begin = max(round.began or 0, end - _BEFORE)
        following = rounds.get(round.number + 1)
        until = min(end + _AFTER, following.began if following and following.began else end + _AFTER)
        self.entries: list[tuple[Log, Entry]] = [
            (log, entry) for log, entry in merged(journal.logs) if self._belongs(entry, begin, until)
        ]

    def _belongs(self, entry: Entry, begin: int, until: int) -> bool:
        number = getattr(entry.event, "round", None)
        if number is not None and not isinstance(entry.event, Leaving):
            return bool(number == self.round.number)
        return begin <= entry.time <= until

    def failed(self) -> list[FailedWorker]:
        """Return the workers that failed, in the order of time."""
        found = []
        for node, time, event in self.of(WorkerEnded):
            if event.exit_code and not event.requested:
                text, reason = self._texts.get(event.rank, FailureText("")), self._in_reason(event.rank)
                if reason.startswith(text.message) and not text.has_exception:  # as the agent adds a lack of memory
                    text = replace(text, message=reason)
                known = explain(text.message, text.traceback)
                found.append(FailedWorker(time, node, event.rank, event.exit_code, text, known))
        return found

    def stopped(self) -> list[FailedWorker]:
        """Return the workers that were stopped while an exception ended them, by rank."""
        failed = {event.rank for _, _, event in self.of(WorkerEnded) if event.exit_code and not event.requested}
        nodes = self.nodes()
        return [
            FailedWorker(0, nodes[rank], rank, 1, text, explain(text.message, text.traceback))
            for rank, text in sorted(self._texts.items())
            if rank in nodes and rank not in failed
        ]

    def nodes(self) -> dict[int, str]:
        """Return the node of each rank."""
        return {rank: node for node, _, event in self.of(WorkersStarted) for rank in event.pids}

    def _in_reason(self, rank: int) -> str:
        """Return the message of a rank in the reason for the end of the round; empty if it is not there."""
        failed, _, message = self.round.reported
        return message if failed == f"rank {rank}" else ""

    def of(self, kind: type[E], node: str = "") -> Iterator[tuple[str, int, E]]:
        """Yield the node, the time and the event of each event of a kind, of all nodes or one."""
        for log, entry in self.entries:
            if isinstance(entry.event, kind) and node in ("", log.name):
                yield log.name, entry.time, entry.event


def chain(evidence: RoundEvidence, account: Account) -> tuple[Link, ...]:
    """Return the events that led to the end of the round, and what followed, in the order of time."""
    links: list[Link] = []
    counts: dict[type, int] = {}
    for log, entry in evidence.entries:
        event = entry.event
        if _is_noise(entry, evidence.round):
            continue
        text = describe_sign(event)
        counts[type(event)] = counts.get(type(event), 0) + bool(text)
        if text and counts[type(event)] <= _MOST_OF_A_KIND:
            links.append(_link(log, entry, text))
    links = links[:_LONGEST_CHAIN]
    following = account.rounds.get(evidence.round.number + 1)
    if following is not None and following.began is not None:
        nodes = len(following.members)
        text = f"round {following.number} begins" + (f" on {nodes} node{'s' * (nodes != 1)}" if nodes else "")
        links.append(Link(following.began / SECOND, "", text, ""))
        training = following.training
        if training is not None and training.first_step is not None:
            source = f", with its state from: {training.source}" if training.source else ""
            links.append(Link(training.first_step / SECOND, "", f"the training continues{source}", ""))
    return tuple(sorted(links, key=lambda link: link.time))


def _is_noise(entry: Entry, round: Round) -> bool:
    """Return whether an event says nothing about the end of the round."""
    event = entry.event
    if isinstance(event, WorkerEnded):
        return not event.exit_code or bool(event.requested)
    if isinstance(event, PeerSuspected):
        return bool(round.lost) and event.peer != round.lost
    if isinstance(event, HangExamined):
        return event.action == "none"
    return isinstance(event, Decided) and event.phase is Phase.RUNNING


def _link(log: Log, entry: Entry, text: str) -> Link:
    return Link(entry.time / SECOND, log.name, one_line(text), f"events/{log.node}.jsonl:{entry.line}")


def one_line(text: str) -> str:
    """Return the first line of a text, cut off if it is long."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
