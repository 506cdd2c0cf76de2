"""The rendezvous' decisions.

Pure: `decide` maps what is agreed (`State`) and what one observer sees (`View`) to the next state, or to none, always
with a reason. Any agent may carry any decision out: all that makes it count is that it becomes the next version of the
register. Time enters only as `View.quorum_for` and as the observer's verdict `Seen.alive`.

Theory of operation
-------------------
A round R runs until something ends it (a report of failure, a lost or leaving node, a newcomer). Then every agent
stops its workers of R and says READY with round R. A round R+1 forms when nobody of R can still have workers: each
member of R is READY, has LEFT, or is dead by its lease, which its own agent enforces by killing its workers earlier
(exclusivity). A round that a worker's failure ended spends one of the restart budget; it is charged only now, when
all members have been heard of, because a lost node makes the workers of the others fail too, and must cost nothing.
Where nothing is wrong, as when a node joins or has been warned that it must leave, workers that ask for it have the
state's grace to finish a step and to save it; what goes wrong meanwhile ends the grace. Should all of them have come to
their end meanwhile, the run has succeeded.

Some agents start no workers again once theirs have succeeded (`Member.final`). Then no round can follow: nodes that
come and changes of size no longer end the round, and if something else does, the run has failed.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from hpcelastic.protocol.ranking import ranked
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Cause, Failure, Member, Phase, Seen, Stand, State, View, name_of, participant
from hpcelastic.protocol.transitions import Mover, checked


@dataclass(frozen=True)
class Decision:
    """What should happen next, as far as this observer can tell."""

    next: State | None
    """The state to commit as the next version; None to wait."""

    reason: str
    """Why; what is waited for, if nothing is to be committed."""

    quorum: bool = False
    """True while enough nodes are ready and only the last call keeps the round open."""

    short: bool = False
    """True while too few nodes are ready, nobody of the last round being waited for."""

    busy: tuple[str, ...] = ()
    """Nodes that are waited for to stop their workers of the last round."""


def decide(state: State, view: View) -> Decision:
    """The next step of the run, which is in the table of `transitions`."""
    decision = _decide(state, view)
    if decision.next is not None:
        checked(Mover.DECIDE, state, decision.next)
    return decision


def _decide(state: State, view: View) -> Decision:
    if state.phase is Phase.RUNNING:
        return _running(state, view)
    if state.phase is Phase.JOINING:
        return _joining(state, view)
    return Decision(None, standing(state))


def standing(state: State) -> str:
    """How the run stands, for who knows no more than what all have agreed on."""
    if state.phase is Phase.RUNNING:
        return f"round {state.round} runs on {_nodes(len(state.participants))}"
    if state.phase is Phase.JOINING:
        return "waiting for a round to form"
    return f"the run has {state.phase.value}: {state.reason}"


def close(state: State, reason: str) -> Decision:
    """End the run for good, whatever it is doing; a run that has ended stays as it is."""
    if state.phase.final:
        return Decision(None, f"the run has {state.phase.value} already")
    return _commit(
        checked(Mover.CLOSE, state, replace(state, phase=Phase.CLOSED, cause=None, grace=0.0, reason=reason))
    )


def fail(state: State, reason: str, failures: tuple[Failure, ...] = ()) -> Decision:
    """End a run whose round cannot succeed any more because an agent has given up; without a round, close the run."""
    if state.phase is not Phase.RUNNING:
        return close(state, reason)
    return _commit(checked(Mover.FAIL, state, replace(state, phase=Phase.FAILED, failures=failures, reason=reason)))


def reopen(state: State, settings: Settings) -> State:
    """Let a run that has ended go on, with a fresh restart budget.

    The members of its last round stay named: should one of them still be alive, the next round waits for it.
    """
    cause = Cause.LEAVE if state.round else None
    again = replace(state, settings=settings, phase=Phase.JOINING, cause=cause, grace=0.0, target=0, spent={})
    again = replace(again, standbys=(), failures=(), reason="the run was reopened")
    return checked(Mover.REOPEN, state, again)


def scale(state: State, nodes: int) -> Decision:
    """Let rounds have at most ``nodes`` nodes; a run that has ended stays as it is."""
    return _steer(state, replace(state, target=nodes, reason=f"scaled to {_nodes(nodes)}"))


def drain(state: State, nodes: Collection[str], *, undo: bool = False) -> Decision:
    """Keep nodes, given by name or by machine, out of all rounds, or let them in again."""
    drained = {*state.drained} - {*nodes} if undo else {*state.drained, *nodes}
    reason = f"{_names(nodes)} may take part again" if undo else f"{_are(nodes)} drained"
    return _steer(state, replace(state, drained=tuple(sorted(drained)), reason=reason))


def retire(state: State, nodes: Collection[str]) -> Decision:
    """Keep incarnations of nodes out of all rounds: whoever started them may start others there, once that is well."""
    retired = tuple(sorted({*state.retired, *nodes}))
    return _steer(state, replace(state, retired=retired, reason=f"{_are([name_of(node) for node in nodes])} drained"))


def checkpoint(state: State) -> Decision:
    """End the round that runs, at a step's end; the next one follows at once."""
    if state.phase is not Phase.RUNNING:
        return Decision(None, standing(state))
    grace = state.settings.rendezvous.checkpoint_grace
    return _commit(checked(Mover.STEER, state, _ended(state, Cause.CHECKPOINT, "a checkpoint was asked for", grace)))


def _steer(state: State, wanted: State) -> Decision:
    if state.phase.final:
        return Decision(None, standing(state))
    if replace(wanted, reason=state.reason) == state:
        return Decision(None, f"already so: {wanted.reason}")
    return _commit(checked(Mover.STEER, state, wanted))


def _commit(state: State) -> Decision:
    return Decision(state, state.reason)


# Phase RUNNING


def _running(state: State, view: View) -> Decision:
    ended = _ending(state, view)
    if ended is not None:
        return _commit(_ended(state, *ended))
    done = _done(state, view)
    if len(done) == len(state.participants):
        return _commit(_succeeded(state))
    parting = None if _finished(state, view) else _parting(state, view)
    if parting is not None:
        return _commit(_ended(state, *parting))
    comer = None if done else _newcomer(state, view)
    if comer is not None:
        grace = state.settings.rendezvous.checkpoint_grace
        return _commit(_ended(state, Cause.JOIN, f"{name_of(comer)} joins", grace))
    return Decision(None, standing(state))


def _done(state: State, view: View) -> set[str]:
    """The members of the round whose workers have all succeeded. Their records stay, whatever becomes of the nodes."""
    return {p.node for p in state.participants if _stands(view, p.node, Stand.SUCCEEDED, state.round)}


def _finished(state: State, view: View) -> set[str]:
    """The members of the round whose workers have succeeded, and whose agents start none again."""
    return {node for node in _done(state, view) if (member := view.nodes[node].member) is not None and member.final}


def _succeeded(state: State) -> State:
    reason = f"all workers of round {state.round} succeeded"
    return replace(state, phase=Phase.SUCCEEDED, cause=None, grace=0.0, reason=reason)


def _ended(state: State, cause: Cause, reason: str, grace: float = 0.0) -> State:
    return replace(state, phase=Phase.JOINING, cause=cause, grace=grace, standbys=(), reason=reason)


def _ending(state: State, view: View) -> tuple[Cause, str] | None:
    """Why the round can't go on, if so. A failure goes before a loss: it has a report to show."""
    failures = _failures(state, view)
    if failures:
        first = failures[0]
        return Cause.WORKER, f"rank {first.rank} failed on {name_of(first.node)}: {first.message}"
    for p in state.participants:
        if _stands(view, p.node, Stand.SUCCEEDED, state.round):
            continue  # its record stays, whatever becomes of the node
        member = view.nodes[p.node].member
        if member is not None and member.stand is Stand.LEFT:
            return Cause.LEAVE, f"{p.name} left"
        if not _alive(view, p.node):
            return Cause.NODE, f"{p.name} was lost"
        if member is not None and member.stand is Stand.READY and member.round >= state.round:
            return Cause.NODE, f"{p.name} stopped its workers"
    return None


def _parting(state: State, view: View) -> tuple[Cause, str, float] | None:
    """Why the round has to end though nothing is wrong with it, if so, and in how many seconds."""
    grace = state.settings.rendezvous.checkpoint_grace
    members = [m for p in state.participants if (m := view.nodes[p.node].member) is not None]
    warned = [(m.leaving.seconds, m.name, m.leaving.reason) for m in members if m.leaving]
    if warned:
        seconds, name, why = min(warned)
        others = f" and {len(warned) - 1} more leave" if len(warned) > 1 else " leaves"
        return Cause.LEAVE, f"{name}{others} within {seconds:.0f} s: {why}", seconds
    drained = [m.name for m in members if state.drains(m)]
    if drained:
        return Cause.LEAVE, f"{_are(drained)} drained", grace
    if len(state.participants) > state.most:
        return Cause.SCALE, f"scaled to {_nodes(state.most)}", grace
    return None


def _newcomer(state: State, view: View) -> str | None:
    if len(state.participants) >= state.most:
        return None
    inside = {p.node for p in state.participants}
    return next((m.node for m in _ready(state, view) if m.node not in inside), None)


# Phase JOINING


def _joining(state: State, view: View) -> Decision:
    broken = _broken(state, view) if state.grace else None
    if broken is not None:
        return _commit(replace(state, grace=0.0, reason=f"{broken} while the round was to end"))
    done = _done(state, view) if state.grace else set()
    busy = tuple(p.node for p in state.participants if p.node not in done and not _has_stopped(state, view, p.node))
    if busy:
        who = _names([name_of(node) for node in busy])
        return Decision(None, f"waiting for {who} to stop the workers of round {state.round}", busy=busy)
    if done and len(done) == len(state.participants):
        return _commit(_succeeded(state))
    finished = _finished(state, view)
    if done and not finished:
        return _commit(replace(state, grace=0.0, reason=f"not all had succeeded when round {state.round} was to end"))
    # A lease that nobody has renewed before our eyes may be that of a node that is long dead.
    unproved = [s.member.name for s in view.nodes.values() if s.member and not s.proved and _is_ready(state, view, s)]
    if unproved:
        return Decision(None, f"waiting for a sign of life from {_names(unproved)}")
    state = _charge(state, view)
    if state.restarts > state.settings.restarts.max:
        return _commit(replace(state, phase=Phase.FAILED, cause=None, reason=_exhausted(state)))
    if finished:
        return _commit(replace(state, phase=Phase.FAILED, cause=None, reason=_unfinished(state, finished)))
    ready = _ready(state, view)
    nodes = state.settings.nodes
    if len(ready) < nodes.min:
        return Decision(None, f"waiting for nodes: {len(ready)} of at least {nodes.min} are ready", short=True)
    if len(ready) < state.most and view.quorum_for < state.settings.rendezvous.last_call:
        coming = _still_coming(state, view)
        if coming != 0:
            who = "more nodes" if coming is None else _nodes(coming)
            return Decision(None, f"last call: {_nodes(len(ready))} ready, waiting for {who}", quorum=True)
    return _commit(_form(state, ready))


def _broken(state: State, view: View) -> str | None:
    """What has happened to the round that keeps its workers from a common last step."""
    failures = _failures(state, view)
    if failures:
        return f"rank {failures[0].rank} failed on {name_of(failures[0].node)}"
    done = _done(state, view)
    for p in state.participants:
        member = view.nodes[p.node].member
        if not _alive(view, p.node) and not _stopped(state, member) and p.node not in done:
            return f"{p.name} was lost"
        if member is not None and member.fenced == state.round:
            return f"{p.name} lost its workers"
    return None


def _has_stopped(state: State, view: View, node: str) -> bool:
    """True if no worker of the round can be left on that node."""
    return _stopped(state, view.nodes[node].member) or not _alive(view, node)


def _stopped(state: State, member: Member | None) -> bool:
    """True if the node has said that no worker of the round is left."""
    if member is None:
        return False
    if member.stand is Stand.SUCCEEDED:
        return member.final and member.round == state.round
    return member.stand is Stand.LEFT or (member.stand is Stand.READY and member.round >= state.round)


def _charge(state: State, view: View) -> State:
    """Book the round that has ended under its true cause: a failure beside a lost or leaving node is its echo."""
    if state.cause is None:
        return state
    back = {m.node for m in _ready(state, view) if m.fenced != state.round} | _finished(state, view)
    cause = state.cause
    if cause is Cause.WORKER and any(p.node not in back for p in state.participants):
        cause = Cause.NODE
    spent = {**state.spent, cause.value: state.spent.get(cause.value, 0) + 1}
    failures = _failures(state, view) or state.failures
    return replace(state, cause=None, grace=0.0, spent=spent, failures=failures if cause is Cause.WORKER else ())


def _exhausted(state: State) -> str:
    budget = state.settings.restarts.max
    first = state.failures[0] if state.failures else None
    what = f"rank {first.rank} failed on {name_of(first.node)}: {first.message}" if first else "a worker failed"
    return f"{what} (restarts.max is {budget}, all spent)" if budget else f"{what} (restarts.max is 0)"


def _unfinished(state: State, finished: Collection[str]) -> str:
    have = "has" if len(finished) == 1 else "have"
    return f"{state.reason}; {_names(map(name_of, finished))} {have} succeeded already, so no round can follow"


def _still_coming(state: State, view: View) -> int | None:
    """How many nodes beyond the ready ones may still come; None if nobody knows.

    A node that was seen and is dead or has left is not waited for: should it return, a new round takes it in. So do
    those of whom nobody knows, once there has been a round.
    """
    alive = [seen.member for node, seen in view.nodes.items() if seen.member and _alive(view, node)]
    alive = [m for m in alive if m.stand is not Stand.LEFT and _wanted(state, m)]
    late = sum(1 for m in alive if not (m.stand is Stand.READY and m.round >= state.round))
    if view.coming is not None:
        return late + view.coming
    if any(not m.job or not m.job_nodes for m in alive):
        return late if state.round else None
    sizes = {m.job: m.job_nodes for m in alive}
    seen_names: dict[str, set[str]] = {job: set() for job in sizes}
    for seen in view.nodes.values():
        if seen.member and seen.member.job in sizes:
            seen_names[seen.member.job].add(seen.member.name)
    return late + sum(max(0, size - len(seen_names[job])) for job, size in sizes.items())


def _form(state: State, ready: list[Member]) -> State:
    """The next round, of those ready."""
    chosen, standbys = ranked(state.participants, ready, state.most)
    gone = {p.name for p in state.participants} - {m.name for m in ready}
    return replace(
        state,
        phase=Phase.RUNNING,
        round=state.round + 1,
        participants=tuple(participant(m) for m in chosen),
        standbys=tuple(m.node for m in standbys),
        reason=f"round {state.round + 1} formed on {_nodes(len(chosen))}"
        + (f", without {_names(gone)}" if gone else ""),
    )


# What the view says


def _alive(view: View, node: str) -> bool:
    return node not in view.dead


def _stands(view: View, node: str, stand: Stand, round: int) -> bool:
    member = view.nodes[node].member
    return member is not None and member.stand is stand and member.round == round


def _ready(state: State, view: View) -> list[Member]:
    """Nodes that are alive and ready for the round after this one, each name once, in no particular order.

    A name stands there twice while the lease of a dead incarnation is not out yet: the one that was not in the round
    came later, and counts.
    """
    ready = [s.member for s in view.nodes.values() if s.member and _is_ready(state, view, s)]
    inside = {p.node for p in state.participants}
    return list({m.name: m for m in sorted(ready, key=lambda m: (m.node not in inside, m.node))}.values())


def _is_ready(state: State, view: View, seen: Seen) -> bool:
    m = seen.member
    if m is None or not _wanted(state, m):
        return False
    return m.stand is Stand.READY and m.round == state.round and _alive(view, m.node)


def _wanted(state: State, member: Member) -> bool:
    """Whether the node may be in the next round."""
    return member.leaving is None and not state.drains(member)


def _failures(state: State, view: View) -> tuple[Failure, ...]:
    """All reports on this round, the earliest first; a report on an older round says nothing."""
    members = (view.nodes[p.node].member for p in state.participants)
    found = [m.failure for m in members if m is not None and m.failure is not None]
    return tuple(sorted((f for f in found if f.round == state.round), key=lambda f: (f.timestamp, f.rank)))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _are(names: Collection[str]) -> str:
    return f"{_names(names)} {'is' if len(names) == 1 else 'are'}"
