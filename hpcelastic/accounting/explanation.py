"""The explanation of the end of a round: its cause, the part at fault, the chain of events, and the remedy. Pure.

Facts precede texts: what agents, kernels and SLURM have reported counts more than the message of a worker. The message
of a worker that only sees the failure of another one is no cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcelastic.accounting.account import Account
from hpcelastic.accounting.evidence import FailedWorker, FailureText, Link, RoundEvidence, chain, one_line
from hpcelastic.accounting.journal import Entry, Journal
from hpcelastic.accounting.rounds import Round
from hpcelastic.health.known_causes import Blame, Certainty
from hpcelastic.protocol.events import (
    AgentRestarted,
    Fenced,
    HangExamined,
    HardwareFound,
    Leaving,
    PeerSuspected,
    SignalReceived,
    StateChanged,
    StoreFailed,
)
from hpcelastic.protocol.state import Cause, Phase, name_of


@dataclass(frozen=True)
class Explanation:
    """Why a round has ended."""

    round: int
    cause: str
    """In one sentence."""

    id: str
    """The id of the known cause, or of the rule; empty if the cause is unknown."""

    blame: Blame
    certainty: Certainty | None
    """None if the cause is unknown."""

    node: str
    """The node at fault, or the node of the worker that failed first; empty if there is none."""

    rank: int | None
    """The rank that failed first; None if none did."""

    remedy: str
    chain: tuple[Link, ...] = ()

    @property
    def known(self) -> bool:
        return self.certainty is not None


def explain_round(journal: Journal, account: Account, number: int, texts: Mapping[int, FailureText]) -> Explanation:
    """Return why a round has ended. ``texts`` has what failed workers have left, by rank."""
    round = account.rounds[number]
    evidence = RoundEvidence(journal, account, number, texts)
    found = next((each for rule in _RULES if (each := rule(evidence)) is not None), _unknown(round))
    return replace(found, chain=chain(evidence, account))


# Rules, in the order in which they are tried. Each returns an explanation without a chain, or None.


def _not_ended(evidence: RoundEvidence) -> Explanation | None:
    round = evidence.round
    if round.ended is None:
        return Explanation(
            round.number, "The round has not ended.", "runs", Blame.NONE, Certainty.CERTAIN, "", None, ""
        )
    if round.succeeded:
        text = "All workers have succeeded."
        return Explanation(round.number, text, "succeeded", Blame.NONE, Certainty.CERTAIN, "", None, "")
    return None


def _closed(evidence: RoundEvidence) -> Explanation | None:
    for _, entry in evidence.of(StateChanged):
        event = entry.event
        if isinstance(event, StateChanged) and event.phase is Phase.CLOSED:
            return Explanation(
                evidence.round.number,
                f"The run was closed: {event.reason}.",
                "closed",
                Blame.USER,
                Certainty.CERTAIN,
                "",
                None,
                "submit the run again to continue it",
            )
    return None


def _planned(evidence: RoundEvidence) -> Explanation | None:
    """A round that has ended although nothing was wrong."""
    round = evidence.round
    blame, remedy = {
        Cause.JOIN: (Blame.SCHEDULER, "nothing: the run has grown"),
        Cause.SCALE: (Blame.USER, "nothing: the run has the size that was asked for"),
        Cause.CHECKPOINT: (Blame.USER, "nothing: the run continues with its checkpoint"),
        Cause.LEAVE: (Blame.SCHEDULER, "nothing: the run continues on the other nodes, or in the requeued job"),
    }.get(round.cause or Cause.WORKER, (None, ""))
    if blame is None:
        return None
    node = ""
    for log, entry in evidence.of(Leaving):
        node = node or log.name
        if isinstance(entry.event, Leaving) and ("drained" in entry.event.reason or "surplus" in entry.event.reason):
            blame = Blame.USER
    if any(True for _ in evidence.of(HardwareFound, node)) and node:
        return _hardware(evidence)
    text = f"Nothing was wrong: {round.reason}."
    return Explanation(
        round.number, text, round.cause.value if round.cause else "", blame, Certainty.CERTAIN, node, None, remedy
    )


def _hardware(evidence: RoundEvidence) -> Explanation | None:
    for log, entry in evidence.of(HardwareFound):
        event = entry.event
        if isinstance(event, HardwareFound) and event.severity != "note":
            return Explanation(
                evidence.round.number,
                f"{event.check} of {log.name}: {event.seen}.",
                "hardware",
                Blame.NODE,
                Certainty.CERTAIN,
                log.name,
                None,
                f"report {log.name} to the administrators, and drain it: hpcelastic drain RUN {log.name}",
            )
    return None


def _hang(evidence: RoundEvidence) -> Explanation | None:
    for _, entry in evidence.of(HangExamined):
        event = entry.event
        if isinstance(event, HangExamined) and event.action in ("restart", "exclude"):
            blame = {"connection": Blame.NETWORK, "cut": Blame.NETWORK, "stopped": Blame.NODE}.get(
                event.verdict, Blame.PROGRAM
            )
            return Explanation(
                evidence.round.number,
                f"The round made no progress: {event.text}.",
                f"hang-{event.verdict}",
                blame,
                Certainty.CERTAIN if event.certain else Certainty.LIKELY,
                _node_of(event.ranks, evidence),
                event.ranks[0] if event.ranks else None,
                f"read the stacks of all ranks in {event.path}",
            )
    return None


def _node_of(ranks: Sequence[int], evidence: RoundEvidence) -> str:
    """Return the node on which the first of the ranks ended; empty if it is unknown."""
    return next((each.node for each in evidence.failed() if each.rank in ranks), "")


def _lost(evidence: RoundEvidence) -> Explanation | None:
    """A node that was lost, unless a worker had failed before the first sign of that."""
    round = evidence.round
    name = name_of(round.lost)
    if not name:
        return None
    own = [each for each in evidence.failed() if not each.is_echo and each.node != name]
    signs = [entry.time for _, entry in evidence.of(PeerSuspected) if _peer(entry) == round.lost]
    if own and own[0].time < min([*signs, round.ended or 0]) and not _is_consequence(own[0]):
        return None
    text, id, blame, certainty, remedy = _why_lost(evidence, name)
    return Explanation(round.number, text, id, blame, certainty, name, None, remedy)


def _peer(entry: Entry) -> str:
    return entry.event.peer if isinstance(entry.event, PeerSuspected) else ""


def _is_consequence(failed: FailedWorker) -> bool:
    """Return whether a failure may be the effect of the loss of another node: nothing tells its cause."""
    text = failed.text
    return failed.known is None and not text.traceback and text.message in ("", f"exit status {failed.exit_code}")


def _why_lost(evidence: RoundEvidence, name: str) -> tuple[str, str, Blame, Certainty, str]:
    """Return text, id, blame, certainty and remedy for a node that was lost."""
    look = f"look at the state of the node: scontrol show node {name}"
    if any(True for _ in evidence.of(Fenced, name)):
        if any(True for _ in evidence.of(StoreFailed, name)):
            text = f"The run's directory did not work on {name}, so its lease expired."
            return (
                text,
                "lease-filesystem",
                Blame.FILESYSTEM,
                Certainty.CERTAIN,
                "check the shared filesystem of the node",
            )
        text = f"The node {name} was alive, but did not renew its lease: it hung, or its filesystem or network did."
        return text, "lease-expired", Blame.NODE, Certainty.LIKELY, look
    signals = [
        entry.event.signal for _, entry in evidence.of(SignalReceived, name) if isinstance(entry.event, SignalReceived)
    ]
    if "SIGTERM" in signals:
        text = f"The node {name} was stopped: its agent received SIGTERM, and has not left in time."
        return text, "stopped-node", Blame.SCHEDULER, Certainty.LIKELY, "see scontrol show job for the reason"
    for _, entry in evidence.of(AgentRestarted, name):
        if isinstance(entry.event, AgentRestarted):
            text = f"The agent of {name} died: {entry.event.reason}."
            return text, "agent-died", Blame.NODE, Certainty.CERTAIN, f"look at the kernel log of {name} (dmesg)"
    signs = {
        entry.event.sign
        for _, entry in evidence.of(PeerSuspected)
        if isinstance(entry.event, PeerSuspected) and name_of(entry.event.peer) == name
    }
    if "refused" in signs or evidence.round.evidence.startswith("reported by"):
        text = f"All processes of the run on {name} have disappeared, and its kernel answers."
        return text, "processes-gone", Blame.NODE, Certainty.CERTAIN, f"they were killed; {look}"
    if "link lost" in signs:
        text = f"The node {name} has disappeared: its connections broke, and its lease expired."
        return text, "node-gone", Blame.NODE, Certainty.CERTAIN, look
    text = f"The node {name} has not renewed its lease: the node, its network or its filesystem failed."
    return text, "node-silent", Blame.NODE, Certainty.LIKELY, look


def _worker(evidence: RoundEvidence) -> Explanation | None:
    """The failure of a worker."""
    failed = evidence.failed()
    first = next((each for each in failed if not each.is_echo), None)
    if first is None:
        return None
    known, number = first.known, evidence.round.number
    where = f"rank {first.rank} on {first.node}"
    message = one_line(first.text.message).rstrip(".")
    if known is not None:
        text = f"{known.text.rstrip('.')} ({where}: {message})."
        return Explanation(number, text, known.id, known.blame, known.certainty, first.node, first.rank, known.remedy)
    log = f"read {first.text.path}" if first.text.path else "read the log of the rank: hpcelastic logs"
    if first.exit_code < 0:
        text = f"Rank {first.rank} on {first.node} was {message or f'killed by signal {-first.exit_code}'}."
        remedy = f"find out what sent it: the kernel for lack of memory (dmesg on {first.node}), SLURM, or a person"
        return Explanation(number, text, "signal", Blame.UNKNOWN, Certainty.LIKELY, first.node, first.rank, remedy)
    if not first.text.message and not first.text.traceback:
        return None
    text = f"Rank {first.rank} on {first.node} failed: {message}."
    return Explanation(
        number,
        text,
        "exception",
        Blame.PROGRAM,
        Certainty.LIKELY,
        first.node,
        first.rank,
        f"{log}, and correct the script",
    )


def _unknown(round: Round) -> Explanation:
    text = f"The logs do not tell why the round has ended{f': {round.reason}' if round.reason else ''}."
    remedy = "read the logs of the workers: hpcelastic logs"
    return Explanation(round.number, text, "", Blame.UNKNOWN, None, "", None, remedy)


_RULES = (_not_ended, _closed, _hang, _planned, _hardware, _lost, _worker)


def worst_round(account: Account) -> int | None:
    """Return the number of the round to explain first: the last one that ended by a fault, or the newest one."""
    if not account.rounds:
        return None
    newest = account.rounds[max(account.rounds)]
    faulty = [number for number, each in account.rounds.items() if each.failed]
    ended_otherwise = newest.ended is not None and not newest.succeeded
    return max(faulty) if faulty and (newest.failed or not ended_otherwise) else newest.number
