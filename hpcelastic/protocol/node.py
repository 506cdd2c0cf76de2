"""The node state machine: what the agent of one node does after each event.

Pure: a `NodeStateMachine` is an immutable, hashable value. Each event returns a `Transition`: the next value, and the
actions that the caller executes one after the other. An action may take long, and events that arrive meanwhile wait.
The order of the actions is therefore part of the policy, and a simulator can let time pass and inject faults between
any two of them. Nothing here touches a file, a process, a signal or a clock. A time ``now`` is in seconds of the clock
of the rendezvous.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcelastic.protocol.assignment import Assignment, assignment
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.state import BY_SCHEDULER, Cause, Failure, Member, NodeState, Notice, Phase, State
from hpcelastic.protocol.transitions import may_publish


@dataclass(frozen=True)
class Publish:
    """Publish the machine's ``member`` in the node's lease, from the next turn of the rendezvous on."""


@dataclass(frozen=True)
class StartWorkers:
    """Start the workers of ``part``, under the lease that was renewed at ``lease_from``. Parked ones are resumed."""

    part: Assignment
    lease_from: float


@dataclass(frozen=True)
class ParkWorkers:
    """Park the workers that can be parked, and stop the others.

    When the action is done, each worker of the round has ended, or is parked: its process waits for the next round and
    cannot take part in the last one any more.
    """

    reason: str


@dataclass(frozen=True)
class StopWorkers:
    """Stop the workers, also those that are parked. When the action is done, no process of theirs is left."""

    reason: str


@dataclass(frozen=True)
class RequestStop:
    """Request that the workers, which poll for requests, stop at the end of a step within ``seconds``."""

    reason: str
    seconds: float
    save: bool
    """Whether they must save their state. If nodes only join, the workers that stay keep it."""


@dataclass(frozen=True)
class ReservePort:
    """Reserve a port for the store of the next round, and pass it to `NodeStateMachine.with_port`."""


@dataclass(frozen=True)
class Finish:
    """End the agent: the run has ended as ``state`` says, and no worker is left on this node."""

    state: State


Action = Publish | StartWorkers | ParkWorkers | StopWorkers | RequestStop | ReservePort | Finish


class WorkerOffer(NamedTuple):
    """The workers of a node that can be in the next round; see the fields of `Member`."""

    ready: int
    starting: int = 0
    early_start: bool = False


class Transition(NamedTuple):
    """The effect of an event: the next value of the machine, and the actions to execute in this order."""

    machine: "NodeStateMachine"
    actions: tuple[Action, ...] = ()

    def then(self, event: Callable[["NodeStateMachine"], "Transition"]) -> "Transition":
        """Return the effect of this event and of another one after it."""
        machine, actions = event(self.machine)
        return Transition(machine, self.actions + actions)


@dataclass(frozen=True)
class NodeStateMachine:
    """The state of one node's agent."""

    member: Member
    """The newest content of the node's lease."""

    part: Assignment | None = None
    """The assignment of the workers that run and are not being stopped."""

    parked: bool = False
    """Whether workers of an earlier round may be parked."""

    prepared: bool = True
    """False while the workers cannot start at once. The node does not join a running round before, because the others
    would pay with a round for the time in which it loads."""

    holds: bool = False
    """True for a moment after workers were lost, while others start in their place: they are in the next round then,
    and no second one is needed."""

    started: bool = False
    """Whether workers have been started in any round."""

    notice: Notice | None = None
    """Why the node leaves. Once it is set, the agent ends as soon as no worker is left."""

    leaves_by: float = 0.0
    """The time by which the node must have left, if it leaves."""

    stop_deadline: float | None = None
    """The time by which the workers must have stopped, if a stop was requested."""

    stop_saves: bool = False
    """Whether the workers were requested to save, if a stop was requested."""

    store_fails: bool = False
    """True from a turn of the rendezvous that failed to one that succeeded."""

    finished: bool = False
    """Whether the agent has been told to end because the run has ended."""

    @property
    def leaving(self) -> bool:
        """Whether the node leaves."""
        return self.notice is not None

    @property
    def left(self) -> bool:
        """Whether the node leaves and no worker of it is left, so that the agent can end."""
        return self.leaving and self.part is None

    def notice_at(self, now: float) -> Notice | None:
        """Return why the node leaves, with the seconds that remain; None if it does not leave."""
        return None if self.notice is None else replace(self.notice, seconds=max(0.0, self.leaves_by - now))

    def seconds_to_stop(self, now: float) -> float | None:
        """Return the seconds until workers that were requested to stop are stopped; None if none were."""
        return None if self.stop_deadline is None else max(0.0, self.stop_deadline - now)

    def with_port(self, port: int) -> "NodeStateMachine":
        """Return the machine with a port for the store of the next round. The next publication contains it."""
        return replace(self, member=replace(self.member, port=port))

    def with_prepared(self, prepared: bool) -> "NodeStateMachine":
        """Return the machine of a node whose workers can start at once, or cannot."""
        return replace(self, prepared=prepared)

    def with_workers(self, offer: WorkerOffer, *, holds: bool) -> "NodeStateMachine":
        """Return the machine of a node with this offer, from the next publication on.

        While it ``holds``, it does not ask for a place.
        """
        member = replace(
            self.member,
            local_world_size=offer.ready,
            starting=offer.starting,
            early_start=offer.early_start,
        )
        return replace(self, member=member, holds=holds)

    def with_progress(self, step: int) -> "NodeStateMachine":
        """Return the machine of a node whose workers have saved the state after ``step`` steps. The next publication
        contains it."""
        return replace(self, member=replace(self.member, progress=max(step, self.member.progress)))

    # Events

    def begin(self, state: State) -> Transition:
        """The agent starts and finds the run at ``state``. It asks for a place if a round is forming."""
        return self._ready(state.round) if state.phase is Phase.JOINING else Transition(self)

    def observe(
        self, state: State, lease: HeldLease, now: float, *, settled: bool = True, polls: bool = False
    ) -> Transition:
        """A turn of the rendezvous has found ``state``, when this node held ``lease``.

        ``settled`` is False if the lease had expired shortly before: others may be about to continue without this node.
        ``polls`` tells whether the workers poll for requests to stop. The caller executes the actions and repeats the
        event, with a new ``now``, until no action is returned: the lease may expire while workers are being stopped.
        """
        machine = replace(self, store_fails=False) if self.store_fails else self
        if state.phase.final:
            return machine._finish(state)
        if not self.leaving and state.drains(self.member):
            by = f" {BY_SCHEDULER}" if self.member.node in state.retired else ""
            notice = Notice(f"{self.member.name} is drained{by}", state.settings.rendezvous.checkpoint_grace)
            return machine.leave(notice, now, polls)
        in_round = state.phase is Phase.RUNNING and self.member.node in state.ranks
        if self.part is not None and not (in_round and state.round == self.part.round):
            if state.phase is Phase.JOINING and state.round == self.part.round and state.grace:
                return machine._request_stop(state.reason, state.grace, now, polls, state.cause is not Cause.JOIN)
            return machine._park(state.reason)
        if self.part is not None or self.leaving or self.member.final:
            return Transition(machine)
        if not in_round:
            return machine._ask_for_a_place(state, now)
        if state.round > self.member.round and settled and now < lease.end:
            # An older observation is not used: without a lease, the others may have continued without this node.
            part = assignment(state, self.member.node)
            assert part is not None
            return machine._start(part, lease.start)
        return Transition(machine)

    def store_failed(self) -> Transition:
        """The run's directory fails.

        A failure of a worker that comes before the directory works again may be a consequence, as with a log on a full
        disk. It is published like a failure that an expired lease has caused, and spends no restart.
        """
        machine = replace(self, store_fails=True)
        if self.member.node_state is NodeState.FAILED and self.member.fenced != self.member.round:
            return machine._publish(NodeState.FAILED, self.member.round, fenced=self.member.round)
        return Transition(machine)

    def workers_offered(self, offer: WorkerOffer, *, holds: bool) -> Transition:
        """The node's offer of workers has changed. See `with_workers`."""
        machine = self.with_workers(offer, holds=holds)
        published = self.member.node_state in (NodeState.READY, NodeState.RUNNING)
        return Transition(machine, (Publish(),) if published and machine.member != self.member else ())

    def worker_failed(self, failure: Failure) -> Transition:
        """A worker has failed. It is published before the other workers are stopped, because its peers wait for it."""
        fenced = failure.round if self.store_fails else self.member.fenced
        published = self._publish(NodeState.FAILED, failure.round, failure=failure, fenced=fenced)
        return published.then(lambda machine: machine._park(f"rank {failure.rank} failed"))

    def failure_described(self, failure: Failure) -> Transition:
        """The description of a failure that was published without it has become known."""
        known = self.member.failure
        if known is not None and (known.round, known.rank) == (failure.round, failure.rank):
            return self._publish(self.member.node_state, self.member.round, failure=failure)
        return Transition(self)

    def workers_succeeded(self, final: bool = False) -> Transition:
        """The last worker of the node has ended, and all have ended with status 0.

        ``final`` is True if the agent starts no workers again, whatever happens to the round.
        """
        assert self.part is not None
        return self._without_workers()._publish(NodeState.SUCCEEDED, self.part.round, final=final)

    def workers_stopped(self, parked: bool = False) -> Transition:
        """The workers have stopped at the end of a step, as requested: they have ended, or they are ``parked``."""
        assert self.part is not None
        machine, round = self._without_workers(parked), self.part.round
        return machine._stop("the node leaves") if self.leaving else machine._ready(round)

    def stop_timed_out(self, reason: str = "the end of the step took too long") -> Transition:
        """The workers have not stopped in time after a request; or they must stop for another ``reason``."""
        assert self.part is not None
        round, parked = self.part.round, self._park(reason)
        return parked if self.leaving else parked.then(lambda machine: machine._ready(round))

    def lease_expired(self, reason: str = "the lease expired") -> Transition:
        """The guard has killed the workers because the lease expired; or they must be replaced for another
        ``reason``."""
        if self.part is None:  # the workers ended meanwhile, perhaps because of the guard
            return self._publish(self.member.node_state, self.member.round, fenced=self.member.round)
        round = self.part.round
        return self._park(reason).then(lambda machine: machine._ready(round, fenced=round))

    def leave(self, notice: Notice, now: float, polls: bool = False) -> Transition:
        """The node must leave. All workers of the round have ``notice.seconds`` to stop at the end of a step, if they
        poll for requests."""
        machine = replace(self, notice=notice, leaves_by=now + notice.seconds)
        if self.part is None:
            return machine._stop(notice.reason)
        published = machine._publish(self.member.node_state, self.member.round, leaving=notice)
        return published.then(lambda machine: machine._request_stop(notice.reason, notice.seconds, now, polls, True))

    def depart(self) -> Transition:
        """Publish the departure, so that no other node waits until the lease expires. A success stays published."""
        if self.member.node_state is NodeState.SUCCEEDED:
            return Transition(self)
        return self._publish(NodeState.LEFT, self.member.round)

    # Transitions

    def _finish(self, state: State) -> Transition:
        if self.finished:
            return Transition(self)
        stopped = self._stop(state.reason)
        return stopped.then(lambda machine: Transition(replace(machine, finished=True), (Finish(state),)))

    def _ask_for_a_place(self, state: State, now: float) -> Transition:
        if state.is_surplus(self.member.node):
            return self.leave(Notice(f"surplus: the run was scaled to {state.max_nodes}", 0.0), now)
        if self.holds or (state.phase is Phase.RUNNING and not self.started and not self.prepared):
            return Transition(self)
        published = self.member.node_state, self.member.round
        if published == (NodeState.SUCCEEDED, state.round) and state.grace:
            return Transition(self)  # the other nodes may succeed too
        return Transition(self) if published == (NodeState.READY, state.round) else self._ready(state.round)

    def _start(self, part: Assignment, lease_from: float) -> Transition:
        machine = replace(self, part=part, started=True, parked=False)
        started = Transition(machine, (StartWorkers(part, lease_from),))
        return started.then(lambda machine: machine._publish(NodeState.RUNNING, part.round, failure=None))

    def _request_stop(self, reason: str, seconds: float, now: float, polls: bool, save: bool) -> Transition:
        """Request a stop, or park the workers at once if they do not poll.

        A repeated request may only be earlier, or require to save.
        """
        deadline, save = now + seconds, save or self.stop_saves
        if self.stop_deadline is not None:
            if deadline >= self.stop_deadline and save == self.stop_saves:
                return Transition(self)
            deadline = min(deadline, self.stop_deadline)
        if deadline > now and polls:
            requested = replace(self, stop_deadline=deadline, stop_saves=save)
            return Transition(requested, (RequestStop(reason, deadline - now, save),))
        return self._park(reason)

    def _park(self, reason: str) -> Transition:
        """Park the workers for the next round. A node that leaves takes part in none, and stops them."""
        if self.part is None:
            return Transition(self)
        if self.leaving:
            return self._stop(reason)
        return Transition(self._without_workers(parked=True), (ParkWorkers(reason),))

    def _stop(self, reason: str) -> Transition:
        if self.part is None and not self.parked:
            return Transition(self)
        return Transition(self._without_workers(), (StopWorkers(reason),))

    def _without_workers(self, parked: bool = False) -> "NodeStateMachine":
        return replace(self, part=None, stop_deadline=None, stop_saves=False, parked=parked)

    def _ready(self, round: int, **changes: object) -> Transition:
        """Ask for a place in the round after ``round``, with a new port for its store."""
        reserved = Transition(self, (ReservePort(),))
        return reserved.then(lambda machine: machine._publish(NodeState.READY, round, **changes))

    def _publish(self, node_state: NodeState, round: int, **changes: object) -> Transition:
        before = self.member.node_state
        assert may_publish(before, node_state), f"a node that is {before.value} publishes {node_state.value}"
        member = replace(self.member, node_state=node_state, round=round, **changes)  # type: ignore[arg-type]  # its fields
        return Transition(replace(self, member=member), (Publish(),))
