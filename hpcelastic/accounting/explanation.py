"""The explanation of the end of a round: its cause, the part at fault, the chain of events, and the remedy. Pure.

Facts precede texts: what agents, kernels and SLURM have reported counts more than the message of a worker. The message
of a worker that only sees the failure of another one is no cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcelastic.accounting.account import Account
from hpcelastic.accounting.evidence import FailedWorker, FailureText, Link, RoundEvidence, chain, one_line
from hpcelastic.accounting.journal import Journal
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
from hpcelastic.protocol.state import BY_SCHEDULER, Cause, Phase, name_of


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a round has ended."""

    id: str
    """The id of the known cause, or of the rule; empty if the cause is unknown."""

    cause: str
    """In one sentence."""

    blame: Blame
    certainty: Certainty | None
    """None if the cause is unknown."""

    remedy: str = ""
    node: str = ""
    """The node at fault, or the node of the worker that failed first; empty if there is none."""

    rank: int | None = None
    """The rank that failed first; None if none did."""

    round: int = 0
    chain: tuple[Link, ...] = ()

    @property
    def known(self) -> bool:
        return self.certainty is not None


def explain_round(journal: Journal, account: Account, number: int, texts: Mapping[int, FailureText]) -> Explanation:
    """Return why a round has ended. ``texts`` has what failed workers have left, by rank."""
    evidence = RoundEvidence(journal, account, number, texts)
    found = next((each for rule in _RULES if (each := rule(evidence)) is not None), None)
    return replace(found or _unknown(evidence.round), round=number, chain=chain(evidence, account))


# Rules, in the order in which they are tried. Each returns an explanation without round and chain, or None.


def _abandoned(evidence: RoundEvidence) -> Explanation | None:
    """A round that was not ended, because no agent is left."""
    if evidence.round.ended is not None or not evidence.abandoned:
        return None
    states = {*evidence.jobs[-1].ended} if evidence.jobs else set()  # the newest job has run the round
    (state,) = states if len(states) == 1 else ("",)
    if state in _JOB_ENDS:
        id, cause, blame, remedy = _JOB_ENDS[state]
        certainty = Certainty.LIKELY if blame is Blame.USER else Certainty.CERTAIN
        return Explanation(id=id, cause=f"No agent is left: {cause}.", blame=blame, certainty=certainty, remedy=remedy)
    resume = "continue the run with --resume"
    if any(event.signal == "SIGTERM" for _, _, event in evidence.of(SignalReceived)):
        cause = "No agent is left: they received SIGTERM, and have not left in time."
        return Explanation(
            id="stopped-run",
            cause=cause,
            blame=Blame.UNKNOWN,
            certainty=Certainty.LIKELY,
            remedy=f"see sacct -j JOB -o JobID,State,Reason for the reason; {resume}",
        )
    told = f", and SLURM calls the jobs {', '.join(sorted(states))}" if states else ""
    return Explanation(
        id="",
        cause=f"No agent is left, and none has told why{told}.",
        blame=Blame.UNKNOWN,
        certainty=None,
        remedy=f"see sacct -j JOB -o JobID,State,Reason, and the kernel's logs of the nodes; {resume}",
    )


_LIMIT = (
    "slurm-time-limit",
    "SLURM has ended the job at its time limit",
    Blame.SCHEDULER,
    "continue the run with --resume; with run.total_time it requeues itself",
)
_NODE_FAILED = (
    "slurm-node-failure",
    "SLURM has ended the job because a node has failed",
    Blame.NODE,
    "see sinfo -R for the node; continue the run with --resume",
)

_JOB_ENDS = {
    "TIMEOUT": _LIMIT,
    "DEADLINE": _LIMIT,
    "NODE_FAIL": _NODE_FAILED,
    "BOOT_FAIL": _NODE_FAILED,
    "CANCELLED": (
        "slurm-cancelled",
        "the job was cancelled",
        Blame.USER,
        "continue the run with --resume",
    ),
    "PREEMPTED": (
        "slurm-preemption",
        "SLURM has preempted the job",
        Blame.SCHEDULER,
        "continue the run with --resume; with slurm.requeue it requeues itself",
    ),
    "OUT_OF_MEMORY": (
        "memory-limit",
        "the job has used more memory than its limit",
        Blame.PROGRAM,
        "request more memory (slurm.memory); continue the run with --resume",
    ),
}
"""The id, the cause, the part at fault and the remedy for the final state of a job. Source: squeue(1)."""


def _no_fault(evidence: RoundEvidence) -> Explanation | None:
    """A round that goes on, or has succeeded."""
    if evidence.round.ended is None:
        return Explanation(id="runs", cause="The round has not ended.", blame=Blame.NONE, certainty=Certainty.CERTAIN)
    if evidence.round.succeeded:
        return Explanation(
            id="succeeded", cause="All workers have succeeded.", blame=Blame.NONE, certainty=Certainty.CERTAIN
        )
    return None


def _closed(evidence: RoundEvidence) -> Explanation | None:
    """A run that a person has closed."""
    reasons = [event.reason for _, _, event in evidence.of(StateChanged) if event.phase is Phase.CLOSED]
    if not reasons:
        return None
    return Explanation(
        id="closed",
        cause=f"The run was closed: {reasons[0]}.",
        blame=Blame.USER,
        certainty=Certainty.CERTAIN,
        remedy="submit the run again to continue it",
    )


def _planned(evidence: RoundEvidence) -> Explanation | None:
    """A round that has ended although nothing was wrong with its workers."""
    round = evidence.round
    if round.cause not in _PLANNED:
        return None
    blame, remedy = _PLANNED[round.cause]
    leaving = [(node, event.reason) for node, _, event in evidence.of(Leaving)]
    node = leaving[0][0] if leaving else ""
    if node and (hardware := _hardware(evidence)) is not None:
        return hardware
    asked = any(word in reason for _, reason in leaving for word in ("drained", "surplus"))
    if asked and BY_SCHEDULER not in round.reason:
        blame = Blame.USER
    return Explanation(
        id=round.cause.value,
        cause=f"Nothing was wrong: {round.reason}.",
        blame=blame,
        certainty=Certainty.CERTAIN,
        remedy=f"nothing: {remedy}",
        node=node,
    )


_PLANNED = {
    Cause.JOIN: (Blame.SCHEDULER, "the run has grown"),
    Cause.SCALE: (Blame.USER, "the run has the size that was asked for"),
    Cause.CHECKPOINT: (Blame.USER, "the run continues with its checkpoint"),
    Cause.LEAVE: (Blame.SCHEDULER, "the run continues on the other nodes, or in the requeued job"),
}
"""Causes that are no faults: who has asked for the end of the round, and what follows."""


def _hardware(evidence: RoundEvidence) -> Explanation | None:
    """Hardware that an agent has found to be faulty."""
    found = [(node, event) for node, _, event in evidence.of(HardwareFound) if event.severity != "note"]
    if not found:
        return None
    node, event = found[0]
    return Explanation(
        id="hardware",
        cause=f"{event.check} of {node}: {event.seen}.",
        blame=Blame.NODE,
        certainty=Certainty.CERTAIN,
        remedy=f"report {node} to the administrators, and drain it: hpcelastic drain RUN {node}",
        node=node,
    )


def _hang(evidence: RoundEvidence) -> Explanation | None:
    """A round that made no progress."""
    found = [event for _, _, event in evidence.of(HangExamined) if event.action in ("restart", "exclude")]
    if not found:
        return None
    (event, *_) = found
    suspects = [each for each in (*evidence.failed(), *evidence.stopped()) if each.rank in event.ranks]
    raised = next((each for each in suspects if each.text.has_exception and not each.is_echo), None)
    if raised is not None and (exception := explain_worker(raised)) is not None:
        cause = f"{exception.cause} Its process has not ended, so the others waited for it."
        return replace(exception, cause=cause, certainty=Certainty.LIKELY)
    return Explanation(
        id=f"hang-{event.verdict}",
        cause=f"The round made no progress: {event.text}.",
        blame=_HANGS.get(event.verdict, Blame.PROGRAM),
        certainty=Certainty.CERTAIN if event.certain else Certainty.LIKELY,
        remedy=f"read the stacks of all ranks in {event.path}",
        node=evidence.nodes().get(event.ranks[0], "") if event.ranks else "",
        rank=event.ranks[0] if event.ranks else None,
    )


_HANGS = {"connection": Blame.NETWORK, "cut": Blame.NETWORK, "stopped": Blame.NODE}
"""The part at fault for the verdicts on a hang that do not blame the program."""


def _lost(evidence: RoundEvidence) -> Explanation | None:
    """A node that was lost, unless a worker had failed before the first sign of that."""
    lost = evidence.round.lost
    if not lost:
        return None
    name = name_of(lost)
    own = [each for each in evidence.failed() if not each.is_echo and each.node != name]
    signs = [time for _, time, event in evidence.of(PeerSuspected) if event.peer == lost]
    if own and own[0].time < min([*signs, evidence.round.ended or 0]) and not _is_consequence(own[0]):
        return None
    return _why_lost(evidence, name)


def _is_consequence(failed: FailedWorker) -> bool:
    """Return whether a failure may be the effect of the loss of another node: nothing tells its cause."""
    text = failed.text
    return failed.known is None and not text.traceback and text.message in ("", f"exit status {failed.exit_code}")


def _why_lost(evidence: RoundEvidence, node: str) -> Explanation:
    """Return why a node was lost, by its own last events, and by the signs that others have seen."""

    look = f"look at the state of the node; under SLURM: scontrol show node {node}"

    def because(
        id: str, cause: str, blame: Blame = Blame.NODE, *, certain: bool = True, remedy: str = look
    ) -> Explanation:
        certainty = Certainty.CERTAIN if certain else Certainty.LIKELY
        return Explanation(id=id, cause=cause, blame=blame, certainty=certainty, remedy=remedy, node=node)

    signs = {event.sign for _, _, event in evidence.of(PeerSuspected) if name_of(event.peer) == node}
    restarts = [event.reason for _, _, event in evidence.of(AgentRestarted, node)]
    if any(True for _ in evidence.of(Fenced, node)):
        if any(True for _ in evidence.of(StoreFailed, node)):
            cause = f"The run's directory did not work on {node}, so its lease expired."
            remedy = "check the shared filesystem of the node"
            return because("lease-filesystem", cause, Blame.FILESYSTEM, remedy=remedy)
        cause = f"The node {node} was alive, but did not renew its lease: it hung, or its filesystem or network did."
        return because("lease-expired", cause, certain=False)
    if any(event.signal == "SIGTERM" for _, _, event in evidence.of(SignalReceived, node)):
        cause = f"The node {node} was stopped: its agent received SIGTERM, and has not left in time."
        remedy = "see scontrol show job for the reason"
        return because("stopped-node", cause, Blame.SCHEDULER, certain=False, remedy=remedy)
    if restarts:
        remedy = f"look at the kernel log of {node} (dmesg)"
        return because("agent-died", f"The agent of {node} died: {restarts[0]}.", remedy=remedy)
    if "refused" in signs or evidence.round.evidence.startswith("reported by"):
        return because(
            "processes-gone", f"All processes of the run on {node} have disappeared, and its kernel answers."
        )
    if "link lost" in signs:
        return because("node-gone", f"The node {node} has disappeared: its connections broke, and its lease expired.")
    cause = f"The node {node} has not renewed its lease: the node, its network or its filesystem failed."
    return because("node-silent", cause, certain=False)


def _worker(evidence: RoundEvidence) -> Explanation | None:
    """The failure of a worker: the first one that is no echo of another failure."""
    first = next((each for each in evidence.failed() if not each.is_echo), None)
    return None if first is None else explain_worker(first)


def _stopped_worker(evidence: RoundEvidence) -> Explanation | None:
    """The exception of a worker whose process had not ended when the round ended, perhaps by another one's failure."""
    first = next((each for each in evidence.stopped() if not each.is_echo), None)
    found = None if first is None else explain_worker(first)
    if first is None or found is None:
        return None
    decided = evidence.round.reported[0] == f"rank {first.rank}"
    return found if decided else replace(found, certainty=Certainty.LIKELY)


def explain_worker(first: FailedWorker) -> Explanation | None:
    """Return what a worker itself tells about its failure; None if it tells nothing."""
    message, where = one_line(first.text.message).rstrip("."), f"rank {first.rank} on {first.node}"
    if first.known is not None:
        found = Explanation(
            id=first.known.id,
            cause=f"{first.known.text.rstrip('.')} ({where}: {message}).",
            blame=first.known.blame,
            certainty=first.known.certainty,
            remedy=first.known.remedy,
        )
    elif first.exit_code < 0 and not first.text.has_exception:
        found = Explanation(
            id="signal",
            cause=f"R{where[1:]} was {message or f'killed by signal {-first.exit_code}'}.",
            blame=Blame.UNKNOWN,
            certainty=Certainty.LIKELY,
            remedy=f"find out what sent it: the kernel for lack of memory (dmesg on {first.node}), SLURM, or a person",
        )
    elif message or first.text.traceback:
        found = Explanation(
            id="exception",
            cause=f"R{where[1:]} failed: {message}.",
            blame=Blame.PROGRAM,
            certainty=Certainty.LIKELY,
            remedy=f"read {first.text.path or 'the log of the rank: hpcelastic logs'}, and correct the script",
        )
    else:
        return None
    return replace(found, node=first.node, rank=first.rank)


def _unknown(round: Round) -> Explanation:
    reason = f": {round.reason}" if round.reason else ""
    return Explanation(
        id="",
        cause=f"The logs do not tell why the round has ended{reason}.",
        blame=Blame.UNKNOWN,
        certainty=None,
        remedy="read the logs of the workers: hpcelastic logs",
    )


_RULES = (_abandoned, _no_fault, _closed, _hang, _planned, _hardware, _lost, _worker, _stopped_worker)


def worst_round(account: Account) -> int | None:
    """Return the number of the round to explain first: the last one that ended by a fault, or the newest one."""
    if not account.rounds:
        return None
    newest = account.rounds[max(account.rounds)]
    if newest.ended is None and account.abandoned:
        return newest.number
    faulty = [number for number, each in account.rounds.items() if each.failed]
    ended_otherwise = newest.ended is not None and not newest.succeeded
    return max(faulty) if faulty and (newest.failed or not ended_otherwise) else newest.number
