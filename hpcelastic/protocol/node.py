"""The node state machine: what the agent of one node does after each event.

Pure: each method takes one event and yields actions. The caller executes them one after the other and sends the answer
of each back. An action may take long, and events that arrive meanwhile wait. The order of the actions is therefore part
of the policy, and a simulator can let time pass and inject faults between any two of them. Nothing here touches a file,
a process or a signal; the clock is passed in.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from hpcelastic.protocol.assignment import Assignment, assignment
from hpcelastic.protocol.state import Failure, Member, NodeState, Notice, Phase, State
from hpcelastic.protocol.transitions import may_publish


@dataclass(frozen=True)
class Publish:
    """Publish ``member`` in the node's lease, from the next turn of the rendezvous on."""

    member: Member


@dataclass(frozen=True)
class StartWorkers:
    """Start the workers of ``part``, under the lease that was renewed at ``lease_from``."""

    part: Assignment
    lease_from: float


@dataclass(frozen=True)
class StopWorkers:
    """Stop the workers. When the action is done, no process of theirs is left."""

    reason: str


@dataclass(frozen=True)
class RequestStop:
    """Request that the workers stop at the end of a step within ``seconds``. The answer is 0 if they do not poll."""

    reason: str
    seconds: float


@dataclass(frozen=True)
class ReservePort:
    """Reserve a port for the store of the next round. The answer is its number."""


@dataclass(frozen=True)
class Finish:
    """End the agent: the run has ended as ``state`` says, and no worker is left on this node."""

    state: State


Action = Publish | StartWorkers | StopWorkers | RequestStop | ReservePort | Finish
Actions = Generator[Action, int | None, None]
"""The answer is a port for `ReservePort`, whether the workers poll for `RequestStop`, and None for other actions."""


def execute(actions: Actions, perform: Callable[[Action], int | None]) -> None:
    """Execute the actions in order. ``perform`` executes one action and returns its answer."""
    answer: int | None = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = perform(actions.send(answer))


class NodeStateMachine:
    """The state of one node's agent.

    ``lease`` is the duration of a lease in seconds. ``clock`` is the clock of the rendezvous.
    """

    def __init__(self, member: Member, lease: float, clock: Callable[[], float]) -> None:
        self.member = member
        """The newest content of the node's lease."""

        self.part: Assignment | None = None
        """The assignment of the workers that run and are not being stopped."""

        self.prepared = True
        """False while the workers cannot start at once. The node does not join a running round before, because the
        others would pay with a round for the time in which it loads."""

        self._new = True
        """True until the workers start for the first time."""

        self._notice: Notice | None = None
        """Why the node leaves. Once it is set, the agent ends as soon as no worker is left."""

        self._leaves_by = 0.0
        """The time by which the node must have left."""

        self._stop_deadline: float | None = None
        """The time by which the workers must have stopped, if a stop was requested."""

        self._store_fails = False
        """True from a turn of the rendezvous that failed to one that succeeded."""

        self._lease = lease
        self._clock = clock

    @property
    def leaving(self) -> bool:
        """Whether the node leaves."""
        return self._notice is not None

    @property
    def notice(self) -> Notice | None:
        """Why the node leaves, with the seconds that remain; None if it does not leave."""
        if self._notice is None:
            return None
        return replace(self._notice, seconds=max(0.0, self._leaves_by - self._clock()))

    @property
    def seconds_to_stop(self) -> float | None:
        """The seconds until workers that were requested to stop are stopped; None if none were."""
        return None if self._stop_deadline is None else max(0.0, self._stop_deadline - self._clock())

    # Events

    def begin(self, state: State) -> Actions:
        """The agent starts and finds the run at ``state``. It asks for a place if a round is forming."""
        if state.phase is Phase.JOINING:
            yield from self._ready(state.round)

    def observe(self, state: State, lease_from: float, settled: bool = True) -> Actions:
        """A turn of the rendezvous has found ``state``, under the lease that was renewed at ``lease_from``.

        ``settled`` is False if the lease had expired shortly before: others may be about to continue without this node.
        """
        self._store_fails = False
        if state.phase.final:
            yield from self._stop(state.reason)
            yield Finish(state)
        elif not self.leaving and state.drains(self.member):
            yield from self.leave(Notice(f"{self.member.name} is drained", state.settings.rendezvous.checkpoint_grace))
        else:
            yield from self._follow(state, lease_from, settled)

    def store_failed(self) -> Actions:
        """The run's directory fails.

        A failure of a worker that comes before the directory works again may be a consequence, as with a log on a full
        disk. It is published like a failure that an expired lease has caused, and spends no restart.
        """
        self._store_fails = True
        if self.member.node_state is NodeState.FAILED and self.member.fenced != self.member.round:
            yield self._publish(NodeState.FAILED, self.member.round, fenced=self.member.round)

    def worker_failed(self, failure: Failure) -> Actions:
        """A worker has failed. It is published before the other workers are stopped, because its peers wait for it."""
        fenced = failure.round if self._store_fails else self.member.fenced
        yield self._publish(NodeState.FAILED, failure.round, failure=failure, fenced=fenced)
        yield from self._stop(f"rank {failure.rank} failed")

    def failure_described(self, failure: Failure) -> Actions:
        """The description of a failure that was published without it has become known."""
        known = self.member.failure
        if known is not None and (known.round, known.rank) == (failure.round, failure.rank):
            yield self._publish(self.member.node_state, self.member.round, failure=failure)

    def workers_succeeded(self, early: bool = False, final: bool = False) -> Actions:
        """The last worker of the node has ended, and all have ended with status 0.

        ``early`` is True if one of them ended because a stop was requested. ``final`` is True if the agent starts no
        workers again, whatever happens to the round.
        """
        assert self.part is not None
        round, self.part, self._stop_deadline = self.part.round, None, None
        if not early:
            yield self._publish(NodeState.SUCCEEDED, round, final=final)
        elif not self.leaving:
            yield from self._ready(round)

    def stop_timed_out(self, why: str = "they took too long to a step's end") -> Actions:
        """The workers have not stopped in time after a request; or they must stop for the reason ``why``."""
        assert self.part is not None
        round = self.part.round
        yield from self._stop(why)
        if not self.leaving:
            yield from self._ready(round)

    def lease_expired(self, why: str = "the lease ran out") -> Actions:
        """The guard has killed the workers because the lease expired; or they must be replaced because of ``why``."""
        if self.part is None:  # the workers ended meanwhile, perhaps because of the guard
            yield self._publish(self.member.node_state, self.member.round, fenced=self.member.round)
        else:
            round = self.part.round
            yield from self._stop(why)
            yield from self._ready(round, fenced=round)

    def report_progress(self, step: int) -> None:
        """Workers have saved the state after ``step`` steps. The next publication contains it."""
        self.member = replace(self.member, progress=max(step, self.member.progress))

    def leave(self, notice: Notice) -> Actions:
        """The node must leave. All workers of the round have ``notice.seconds`` to stop at the end of a step."""
        self._notice, self._leaves_by = notice, self._clock() + notice.seconds
        if self.part is not None:
            yield self._publish(self.member.node_state, self.member.round, leaving=notice)
            yield from self._request_stop(notice.reason, notice.seconds)

    def depart(self) -> Actions:
        """Publish the departure, so that no other node waits until the lease expires. A success stays published."""
        if self.member.node_state is not NodeState.SUCCEEDED:
            yield self._publish(NodeState.LEFT, self.member.round)

    # Transitions

    def _follow(self, state: State, lease_from: float, settled: bool) -> Actions:
        part = assignment(state, self.member.node)
        if self.part is not None and (part is None or part.round != self.part.round):
            if state.phase is Phase.JOINING and state.round == self.part.round and state.grace:
                yield from self._request_stop(state.reason, state.grace)
            else:
                yield from self._stop(state.reason)
        if self.part is not None or self.leaving:
            return
        if self.member.final:
            return
        if part is None:
            yield from self._ask_for_a_place(state)
        elif part.round > self.member.round and settled and self._lease_holds(lease_from):
            self.part = part
            self._new = False
            yield StartWorkers(part, lease_from)
            yield self._publish(NodeState.RUNNING, part.round, failure=None)

    def _ask_for_a_place(self, state: State) -> Actions:
        if state.is_surplus(self.member.node):
            yield from self.leave(Notice(f"surplus: the run was scaled to {state.max_nodes}", 0.0))
            return
        if state.phase is Phase.RUNNING and self._new and not self.prepared:
            return
        published = self.member.node_state, self.member.round
        if published == (NodeState.SUCCEEDED, state.round) and state.grace:
            return  # the other nodes may succeed too
        if published != (NodeState.READY, state.round):
            yield from self._ready(state.round)

    def _lease_holds(self, lease_from: float) -> bool:
        """Return whether the lease of the observation still holds. If not, others may have continued without us."""
        return self._clock() < lease_from + self._lease

    def _request_stop(self, reason: str, seconds: float) -> Actions:
        """Request a stop, or stop the workers at once if they do not poll. A repeated request may only be earlier."""
        deadline = self._clock() + seconds
        if self._stop_deadline is not None and deadline >= self._stop_deadline:
            return
        if seconds > 0 and (yield RequestStop(reason, seconds)):
            self._stop_deadline = deadline
        else:
            yield from self._stop(reason)

    def _stop(self, reason: str) -> Actions:
        if self.part is not None:
            self.part = self._stop_deadline = None
            yield StopWorkers(reason)

    def _ready(self, round: int, **changes: object) -> Actions:
        """Ask for a place in the round after ``round``, with a new port for its store."""
        port = yield ReservePort()
        yield self._publish(NodeState.READY, round, port=port, **changes)

    def _publish(self, node_state: NodeState, round: int, **changes: object) -> Publish:
        before = self.member.node_state
        assert may_publish(before, node_state), f"a node that is {before.value} publishes {node_state.value}"
        self.member = replace(self.member, node_state=node_state, round=round, **changes)  # type: ignore[arg-type]  # its fields
        return Publish(self.member)
