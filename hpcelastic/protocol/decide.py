"""The decisions of the rendezvous.

Pure: `decide` maps the agreed state (`State`) and the view of one observer (`View`) to the next state, or to none,
always with a reason. Any agent may execute any decision. A decision counts only if it becomes the next version of the
register. Time enters only as `View.quorum_for` and as the observer's verdict `Seen.alive`.

Theory of operation
-------------------
A round R runs until something ends it: a failure report, a lost or leaving node, or a newcomer. Then every agent stops
its workers of R and publishes READY with round R. Round R+1 forms when no member of R can still have workers: each
member of R is READY, has LEFT, or is dead by its lease. The agent of a node kills its workers before its lease counts
as expired (exclusivity).

A round that ended by a worker's failure spends one unit of the restart budget. It is charged only now, when the state
of all members is known: a lost node makes the workers of other nodes fail too, and that must cost nothing.

If nothing is wrong, for example when a node joins or has been warned that it must leave, workers that call
``should_stop()`` have the grace period of the state to finish a step and to save it. A fault in the grace period ends
it. If all workers succeed in the grace period, the run has succeeded.

Some agents start no workers again after theirs have succeeded (`Member.final`). Then no round can follow. Newcomers and
changes of size no longer end the round. If anything else ends it, the run has failed.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from hpcelastic.protocol.budget import reason_to_give_up, refilled
from hpcelastic.protocol.groups import ranked_groups
from hpcelastic.protocol.ranking import ranked
from hpcelastic.protocol.rollback import rolled_back
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import (
    BY_SCHEDULER,
    Cause,
    Failure,
    Member,
    NodeState,
    Phase,
    State,
    View,
    name_of,
    participants_of,
)
from hpcelastic.protocol.transitions import Mover, checked

_FAILURES, _TRACEBACKS = 64, 8
"""The number of failures in the state, apart from those that decide what follows, and of those that keep their
tracebacks. All nodes may fail for the same reason, and a value in etcd may have 1.5 MiB."""


@dataclass(frozen=True)
class Decision:
    """The next step of the run, in the view of this observer."""

    next: State | None
    """The state to commit as the next version; None to wait."""

    reason: str
    """The reason for the next state, or what the run waits for."""

    quorum: bool = False
    """True while enough nodes are ready and the round waits for more only because of the last call."""

    short: bool = False
    """True while too few nodes are ready, and no member of the last round still has to stop its workers."""

    busy: tuple[str, ...] = ()
    """Nodes that still have to stop their workers of the last round."""


def decide(state: State, view: View) -> Decision:
    """Return the next step of the run. It is in the table of `transitions`."""
    decision = _decide(state, view)
    if decision.next is not None:
        checked(Mover.DECIDE, state, decision.next)
    return decision


def _decide(state: State, view: View) -> Decision:
    if state.phase is Phase.RUNNING:
        return _running(state, view)
    if state.phase is Phase.JOINING:
        return _joining(state, view)
    return Decision(None, describe(state))


def describe(state: State) -> str:
    """Describe the run for users, from the agreed state alone."""
    if state.phase is Phase.RUNNING:
        return f"round {state.round} runs on {_nodes(len(state.participants))}"
    if state.phase is Phase.JOINING:
        return "waiting for a round to form"
    return f"the run has {state.phase.value}: {state.reason}"


def close(state: State, reason: str) -> Decision:
    """End the run permanently, in any phase. A run that has ended does not change."""
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
    """Continue a run that has ended, with a fresh restart budget.

    The state keeps the members of its last round: if one of them is still alive, the next round waits for it.
    """
    cause = Cause.LEAVE if state.round else None
    reopened = replace(state, settings=settings, phase=Phase.JOINING, cause=cause, grace=0.0, target=0)
    rollback = replace(state.rollback, number=0) if state.rollback else None
    reopened = replace(reopened, spent={}, refilled=0, charge=None, rollback=rollback)
    reopened = replace(reopened, standbys=(), failures=(), reason="the run was reopened")
    return checked(Mover.REOPEN, state, reopened)


def scale(state: State, nodes: int) -> Decision:
    """Limit rounds to ``nodes`` nodes. A run that has ended does not change."""
    return _steer(state, replace(state, target=nodes, reason=f"scaled to {_nodes(nodes)}"))


def drain(state: State, nodes: Collection[str], *, undo: bool = False) -> Decision:
    """Exclude nodes, given by name or by machine, from all rounds, or admit them again."""
    drained = {*state.drained} - {*nodes} if undo else {*state.drained, *nodes}
    reason = f"{_names(nodes)} may join again" if undo else f"{_are(nodes)} drained"
    return _steer(state, replace(state, drained=tuple(sorted(drained)), reason=reason))


def retire(state: State, nodes: Collection[str]) -> Decision:
    """Exclude incarnations of nodes that the scheduler drains. Later incarnations of the same nodes may join."""
    retired = tuple(sorted({*state.retired, *nodes}))
    reason = f"{_are([name_of(node) for node in nodes])} drained {BY_SCHEDULER}"
    return _steer(state, replace(state, retired=retired, reason=reason))


def checkpoint(state: State) -> Decision:
    """End the running round at the end of a step. The next round follows at once."""
    if state.phase is not Phase.RUNNING:
        return Decision(None, describe(state))
    grace = state.settings.rendezvous.checkpoint_grace
    return _commit(checked(Mover.STEER, state, _ended(state, Cause.CHECKPOINT, "a checkpoint was requested", grace)))


def request_stacks(state: State) -> Decision:
    """Request that all agents write the stacks of their workers. The running round continues."""
    if state.phase is not Phase.RUNNING:
        return Decision(None, describe(state))
    return _steer(state, replace(state, stacks=state.stacks + 1))


def _steer(state: State, wanted: State) -> Decision:
    if state.phase.final:
        return Decision(None, describe(state))
    if replace(wanted, reason=state.reason) == state:
        return Decision(None, f"nothing to change: {wanted.reason}")
    return _commit(checked(Mover.STEER, state, wanted))


def _commit(state: State) -> Decision:
    return Decision(state, state.reason)


# Phase RUNNING


def _running(state: State, view: View) -> Decision:
    ended = _forced_end(state, view)
    if ended is not None:
        return _commit(_ended(state, *ended))
    done = _done(state, view)
    if len(done) == len(state.participants):
        return _commit(_succeeded(state))
    planned = None if _finished(state, view) else _planned_end(state, view)
    if planned is not None:
        return _commit(_ended(state, *planned))
    newcomer = None if done else _newcomer(state, view)
    if newcomer is not None:
        grace = state.settings.rendezvous.checkpoint_grace
        return _commit(_ended(state, Cause.JOIN, newcomer, grace))
    return Decision(None, describe(state))


def _done(state: State, view: View) -> set[str]:
    """Return the members of the round whose workers have all succeeded. Their records stay if the nodes end or die."""
    succeeded, round = NodeState.SUCCEEDED, state.round
    found = [m for seen in view.nodes.values() if (m := seen.member) and m.node_state is succeeded and m.round == round]
    return {m.node for m in found if m.node in state.ranks}


def _finished(state: State, view: View) -> set[str]:
    """Return the members of the round whose workers have succeeded, and whose agents start no workers again."""
    return {node for node in _done(state, view) if (member := view.nodes[node].member) is not None and member.final}


def _succeeded(state: State) -> State:
    reason = f"all workers of round {state.round} succeeded"
    return replace(state, phase=Phase.SUCCEEDED, cause=None, grace=0.0, reason=reason)


def _ended(state: State, cause: Cause, reason: str, grace: float = 0.0, lost: str = "") -> State:
    return replace(state, phase=Phase.JOINING, cause=cause, grace=grace, lost=lost, standbys=(), reason=reason)


def _forced_end(state: State, view: View) -> tuple[Cause, str, float, str] | None:
    """Return why the round cannot continue, and which node was lost; None if it can.

    A failure precedes a loss, because it has a report.
    """
    failures = _failures(state, view)
    if failures:
        first = failures[0]
        return Cause.WORKER, f"rank {first.rank} failed on {name_of(first.node)}: {first.message}", 0.0, ""
    for node in state.ranks:
        member = view.nodes[node].member
        if _is_in(member, NodeState.SUCCEEDED, state.round):
            continue  # its record stays if the node ends or dies
        if member is not None and member.node_state is NodeState.LEFT:
            return Cause.LEAVE, f"{member.name} left", 0.0, ""
        if not _alive(view, node):
            return Cause.NODE, f"{name_of(node)} was lost", 0.0, node
        if member is not None and member.node_state is NodeState.READY and member.round >= state.round:
            return Cause.NODE, f"{member.name} stopped its workers", 0.0, ""
    return None


def _planned_end(state: State, view: View) -> tuple[Cause, str, float] | None:
    """Return why the round has to end although nothing is wrong, and in how many seconds; None if it continues."""
    grace = state.settings.rendezvous.checkpoint_grace
    members = [m for node in state.ranks if (m := view.nodes[node].member) is not None]
    leaving = [(m.leaving.seconds, m.name, m.leaving.reason) for m in members if m.leaving]
    if leaving:
        seconds, name, why = min(leaving)
        others = f" and {len(leaving) - 1} more leave" if len(leaving) > 1 else " leaves"
        return Cause.LEAVE, f"{name}{others} within {seconds:.0f} s: {why}", seconds
    drained = [m for m in members if state.drains(m)]
    if drained:
        by = f" {BY_SCHEDULER}" if {m.node for m in drained} <= {*state.retired} else ""
        return Cause.LEAVE, f"{_are([m.name for m in drained])} drained{by}", grace
    if len(state.participants) > state.max_nodes:
        return Cause.SCALE, f"scaled to {_nodes(state.max_nodes)}", grace
    return None


def _newcomer(state: State, view: View) -> str | None:
    """Return which node joins, with the others that are ready, or has more workers than places; None if none does."""
    for node, places in zip(state.ranks, column(state.participants, "local_world_size"), strict=True):
        member = view.nodes[node].member
        if _is_in(member, NodeState.RUNNING, state.round) and member is not None:
            more = member.local_world_size - places
            if more > 0:
                return f"{member.name} has {'another worker' if more == 1 else f'{more} more workers'}"
    outside = [m for m in _ready(state, view) if m.node not in state.ranks]
    joins = outside and state.size_of([*state.participants, *outside]) > len(state.participants)
    return f"{outside[0].name} joins" if joins else None


# Phase JOINING


def _joining(state: State, view: View) -> Decision:
    fault = _fault(state, view) if state.grace else None
    if fault is not None:
        return _commit(replace(state, grace=0.0, reason=f"{fault} during the grace period"))
    done = _done(state, view) if state.grace else set()
    returned, unproved = _returned(state, view)
    stopped = done.union([m.node for m in returned])
    busy = tuple(node for node in state.ranks if node not in stopped and not _has_stopped(state, view, node))
    if busy:
        names = _names([name_of(node) for node in busy])
        return Decision(None, f"waiting for {names} to stop the workers of round {state.round}", busy=busy)
    if done and len(done) == len(state.participants):
        return _commit(_succeeded(state))
    finished = _finished(state, view)
    if done and not finished:
        return _commit(
            replace(state, grace=0.0, reason=f"round {state.round} ended before all its nodes had succeeded")
        )
    # A lease whose renewal this observer has not seen may belong to a node that died long ago.
    if unproved:
        return Decision(None, f"waiting for a heartbeat from {_names(unproved)}")
    returned = _each_name_once(state, returned)
    before, state = state, _charge(state, view, returned, finished)
    if state.drained != before.drained or state.retired != before.retired:
        returned = [m for m in returned if not state.drains(m)]
    spent = reason_to_give_up(state)
    if spent is not None:
        return _commit(replace(state, phase=Phase.FAILED, cause=None, reason=spent))
    if finished:
        return _commit(replace(state, phase=Phase.FAILED, cause=None, reason=_unfinished(state, finished)))
    ready, nodes = _with_workers(returned), state.settings.nodes
    fitting = state.fitting(ready)
    with_starting = fitting < nodes.min
    if with_starting:
        ready = returned
        fitting = state.fitting(ready)
    if fitting < nodes.min:
        return Decision(None, f"waiting for nodes: {_ready_nodes(ready, fitting, nodes)}", short=True)
    if fitting < state.max_nodes and view.quorum_for < state.settings.rendezvous.last_call:
        expected = _expected_nodes(state, view)
        if expected != 0:
            missing = "more nodes" if expected is None else _nodes(expected)
            return Decision(None, f"last call: {_nodes(len(ready))} ready, waiting for {missing}", quorum=True)
    return _commit(_form(state, view, ready, with_starting))


def _fault(state: State, view: View) -> str | None:
    """Return the event that keeps the workers of the round from finishing a step together; None if there is none."""
    failures = _failures(state, view)
    if failures:
        return f"rank {failures[0].rank} failed on {name_of(failures[0].node)}"
    done = _done(state, view)
    for node in state.ranks:
        member = view.nodes[node].member
        if not _alive(view, node) and not _stopped(state, member) and node not in done:
            return f"{name_of(node)} was lost"
        if member is not None and member.fenced == state.round and node not in done:
            return f"{member.name} lost its workers"
    return None


def _has_stopped(state: State, view: View, node: str) -> bool:
    """True if no worker of the round can be left on the node."""
    return _stopped(state, view.nodes[node].member) or not _alive(view, node)


def _stopped(state: State, member: Member | None) -> bool:
    """True if the node has published that no worker of the round is left."""
    if member is None:
        return False
    if member.node_state is NodeState.SUCCEEDED:
        return member.final and member.round == state.round
    return member.node_state is NodeState.LEFT or (member.node_state is NodeState.READY and member.round >= state.round)


def _charge(state: State, view: View, returned: Collection[Member], finished: Collection[str]) -> State:
    """Count the ended round under its true cause. A failure next to a lost or leaving node is its consequence.

    ``returned`` are the members that are there for the next round, and ``finished`` the nodes that need none.
    """
    if state.cause is None:
        return state
    cause = state.cause
    if cause is Cause.WORKER:
        stopped = {m.node for m in returned if m.fenced != state.round}.union(finished)
        if any(node not in stopped for node in state.ranks):
            cause = Cause.NODE
    kept: tuple[Failure, ...] = ()
    if cause is Cause.WORKER:
        failures = _failures(state, view)
        saved = max((seen.member.progress for seen in view.nodes.values() if seen.member), default=-1)
        state = refilled(state, failures[0] if failures else None, saved)
        there = [seen.member for seen in view.nodes.values() if seen.alive and seen.member and not seen.member.leaving]
        state = rolled_back(state, next((failure for failure in failures if failure.rollback), None), there)
        kept = _shortened(failures)
    spent = {**state.spent, cause.value: state.spent.get(cause.value, 0) + 1}
    return replace(state, cause=None, grace=0.0, spent=spent, failures=kept)


def _unfinished(state: State, finished: Collection[str]) -> str:
    have = "has" if len(finished) == 1 else "have"
    return f"{state.reason}; {_names(map(name_of, finished))} {have} succeeded already, so no round can follow"


def _expected_nodes(state: State, view: View) -> int | None:
    """Return how many nodes besides the ready ones may still join; None if unknown.

    A node that was seen and is dead or has left does not count: if it returns, a new round includes it. The same holds
    for a node that was lost in an earlier round and whose lease has not expired, and after the first round for unknown
    nodes.
    """
    dead, late, known, left, ready = view.dead, 0, True, NodeState.LEFT, NodeState.READY
    drains = _drains(state)
    sizes: dict[str, int] = {}
    names = defaultdict[str, set[str]](set)
    for node, seen in view.nodes.items():  # once, because the objects of ten thousand nodes fit into no cache
        m = seen.member
        if m is None:
            continue
        names[m.job].add(m.name)
        if m.node_state is not left and m.leaving is None and node not in dead and not (drains and drains(m)):
            if m.node_state is ready and m.round < state.round:
                late += 1
            if not (m.job and m.job_nodes):
                known = False
            sizes[m.job] = m.job_nodes
    if view.expected is not None:
        return late + view.expected
    if not known:
        return late if state.round else None
    return late + sum(max(0, size - len(names[job])) for job, size in sizes.items())


def _form(state: State, view: View, ready: list[Member], with_starting: bool) -> State:
    """Form the next round of the ready nodes, of which workers that are still starting take part or do not."""
    size, nodes = state.size_of(ready), state.settings.nodes
    if nodes.within:
        chosen, standbys = ranked_groups(state.participants, ready, size, nodes.multiple)
    else:
        chosen, standbys = ranked(state.participants, ready, size)
    nodes_there = {m.node for m in ready}
    gone = {name_of(node) for node in state.ranks if node not in nodes_there} - {m.name for m in ready}
    return replace(
        state,
        phase=Phase.RUNNING,
        round=state.round + 1,
        participants=participants_of(chosen, with_starting=with_starting),
        standbys=tuple(m.node for m in standbys),
        retired=tuple(node for node in state.retired if node in view.nodes),  # the others never return
        reason=f"round {state.round + 1} formed on {_nodes(len(chosen))}"
        + (f", without {_names(gone)}" if gone else ""),
    )


# Queries on the view


def waiting(state: State, view: View) -> int:
    """Return the number of nodes that wait for the next round, with members that have stopped their workers."""
    return len(_ready(state, view))


def _alive(view: View, node: str) -> bool:
    return node not in view.dead


def _is_in(member: Member | None, node_state: NodeState, round: int) -> bool:
    return member is not None and member.node_state is node_state and member.round == round


def _ready(state: State, view: View) -> list[Member]:
    """Return the nodes that ask for a place in the round after this one, each name once, in no particular order."""
    return _with_workers(_each_name_once(state, _returned(state, view)[0]))


def _with_workers(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.local_world_size > 0]


def _returned(state: State, view: View) -> tuple[list[Member], list[str]]:
    """Return the nodes that are alive and ready, also those whose workers are still starting.

    Return also the names of those of which no heartbeat was seen.
    """
    dead, round, ready, drains = view.dead, state.round, NodeState.READY, _drains(state)
    found = [
        seen
        for seen in view.nodes.values()
        if (m := seen.member) and m.node_state is ready and m.round == round and m.leaving is None
        if m.node not in dead and not (drains and drains(m))
    ]
    members = [seen.member for seen in found if seen.member]
    return members, [seen.member.name for seen in found if not seen.proved and seen.member]


def _each_name_once(state: State, members: list[Member]) -> list[Member]:
    """Return the members with each name once: the later one of two incarnations of a node.

    A name occurs twice while the lease of a dead incarnation has not expired. Then the incarnation that was not in the
    round is the later one, and counts.
    """
    if len({m.name for m in members}) == len(members):
        return members
    found: dict[str, Member] = {}
    for member in members:
        other = found.setdefault(member.name, member)
        if other is not member:
            found[member.name] = max(other, member, key=lambda m: (m.node not in state.ranks, m.node))
    return list(found.values())


def _drains(state: State) -> Callable[[Member], bool] | None:
    """Return `State.drains` if any node is excluded from all rounds."""
    return state.drains if state.drained or state.retired else None


def _failures(state: State, view: View) -> tuple[Failure, ...]:
    """Return all failure reports of this round, the root cause first. Reports of older rounds do not count.

    A failure that may be the effect of another one comes last. The others are in the order of the filesystem's clock,
    because the clocks of nodes differ.
    """
    members = (view.nodes[node].member for node in state.ranks)
    found = [m.failure for m in members if m is not None and m.failure is not None]
    return tuple(sorted((f for f in found if f.round == state.round), key=_precedence))


def _shortened(failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Return the first failures, of which the first ones have their tracebacks. The root cause is the first."""
    later = [failure for failure in failures[_FAILURES:] if failure.rollback or failure.collective]
    others = [*failures[_TRACEBACKS:_FAILURES], *later[:_FAILURES]]
    return failures[:_TRACEBACKS] + tuple(replace(failure, traceback="") for failure in others)


def _precedence(failure: Failure) -> tuple[bool, bool, float, int]:
    effect = failure.collective or failure.echo
    return effect, failure.happened is None, failure.happened or 0.0, failure.rank


def _ready_nodes(ready: Collection[Member], fitting: int, nodes: NodeRange) -> str:
    if nodes.within and fitting < len(ready):
        groups = f"make whole groups of {nodes.multiple} in one {nodes.within}, of {len(ready)} that are ready"
        return f"{fitting} of at least {nodes.min} {groups}"
    return f"{len(ready)} of at least {nodes.min} are ready"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _are(names: Collection[str]) -> str:
    return f"{_names(names)} {'is' if len(names) == 1 else 'are'}"
