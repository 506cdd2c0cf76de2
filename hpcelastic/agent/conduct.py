"""What an agent does about what it learns.

Pure: each method takes one event and yields actions, which `Agent` carries out one after the other. It may take long
over each, and what happens meanwhile waits; so the order of the actions is the policy, and the simulator of the tests
can let time pass, and faults come, between any two. Nothing here touches a file, a process or a signal.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from hpcelastic.protocol.assignment import Assignment, assignment
from hpcelastic.protocol.state import Failure, Member, Notice, Phase, Stand, State
from hpcelastic.protocol.transitions import may_say


@dataclass(frozen=True)
class Say:
    """Publish this in our lease, from the next turn of the rendezvous on."""

    member: Member


@dataclass(frozen=True)
class Start:
    """Start the workers of our part, under the lease that began at ``lease_from``."""

    part: Assignment
    lease_from: float


@dataclass(frozen=True)
class Stop:
    """Stop the workers; once that is done no process of theirs is left."""

    reason: str


@dataclass(frozen=True)
class Ask:
    """Ask the workers to come to a step's end within ``seconds``; the answer is 0 if they don't heed such wishes."""

    reason: str
    seconds: float


@dataclass(frozen=True)
class Reserve:
    """Reserve a port for the store of the next round; the answer is its number."""


@dataclass(frozen=True)
class End:
    """The run has ended as ``state`` says, and no worker is left here."""

    state: State


Action = Say | Start | Stop | Ask | Reserve | End
Actions = Generator[Action, int | None, None]
"""The answer to an action is a port for `Reserve`, whether they do for `Ask`, None for the others."""


def carry_out(actions: Actions, act: Callable[[Action], int | None]) -> None:
    """Do what was decided, in order; ``act`` does one action, and returns its answer."""
    answer: int | None = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = act(actions.send(answer))


class Conduct:
    """How one node's agent behaves; ``lease`` in seconds, ``clock`` that of the rendezvous."""

    def __init__(self, member: Member, lease: float, clock: Callable[[], float]) -> None:
        self.member = member
        """What the node says of itself."""

        self.part: Assignment | None = None
        """What its workers do, those that run and are not being stopped."""

        self.prepared = True
        """False while its workers could not start at once. The others train on as long as it is not: a newcomer costs
        them a round, and must not cost them the time in which it loads what it needs."""

        self._new = True
        """True until its workers start for the first time."""

        self._notice: Notice | None = None
        """Why the node must go, once it must: as soon as no worker of it is left, the agent ends."""

        self._leaves_by = 0.0
        """When it must have gone."""

        self._asked: float | None = None
        """When the workers must have come to a step's end, if they were asked for that."""

        self._troubled = False
        """True from a turn of the rendezvous that failed to one that did not."""

        self._lease = lease
        self._clock = clock

    @property
    def leaving(self) -> bool:
        """Whether the node must go."""
        return self._notice is not None

    @property
    def notice(self) -> Notice | None:
        """Why the node must go, and the seconds that are left for it by now; None if it need not."""
        if self._notice is None:
            return None
        return replace(self._notice, seconds=max(0.0, self._leaves_by - self._clock()))

    def found(self, state: State) -> Actions:
        """The agent begins, in a run that stood at ``state``: where a round forms, its first word asks for a place."""
        if state.phase is Phase.JOINING:
            yield from self._ready(state.round)

    def learned(self, state: State, lease_from: float, settled: bool = True) -> Actions:
        """A turn of the rendezvous has found ``state``, under the lease that began at ``lease_from``.

        ``settled`` unless the lease had run out just before, so that others may be about to go on without us.
        """
        self._troubled = False
        if state.phase.final:
            yield from self._stop(state.reason)
            yield End(state)
        elif not self.leaving and state.drains(self.member):
            yield from self.leave(Notice(f"{self.member.name} is drained", state.settings.rendezvous.checkpoint_grace))
        else:
            yield from self._follow(state, lease_from, settled)

    def troubled(self) -> Actions:
        """The run's directory fails. A worker's failure that comes before it works again may be its doing, as that of a
        log on a disk that is full, and is told like one that the fence has caused: it spends nothing."""
        self._troubled = True
        if self.member.stand is Stand.FAILED and self.member.fenced != self.member.round:
            yield self._say(Stand.FAILED, self.member.round, fenced=self.member.round)

    def worker_failed(self, failure: Failure) -> Actions:
        """A worker has failed. Its peers wait for it, so the others hear of it before ours are stopped."""
        fenced = failure.round if self._troubled else self.member.fenced
        yield self._say(Stand.FAILED, failure.round, failure=failure, fenced=fenced)
        yield from self._stop(f"rank {failure.rank} failed")

    def workers_succeeded(self, early: bool = False, final: bool = False) -> Actions:
        """The last worker of the node has ended, all with status 0; ``early`` if one did so because it was asked to.

        ``final`` if the agent starts no workers again, whatever becomes of the round.
        """
        assert self.part is not None
        round, self.part, self._asked = self.part.round, None, None
        if not early:
            yield self._say(Stand.SUCCEEDED, round, final=final)
        elif not self.leaving:
            yield from self._ready(round)

    @property
    def overdue(self) -> float | None:
        """Seconds until workers that were asked to come to a step's end are stopped; None if none were."""
        return None if self._asked is None else max(0.0, self._asked - self._clock())

    def lose_patience(self, why: str = "they took too long to a step's end") -> Actions:
        """They have not come to it in time; or, with another ``why``, they are of no use any more."""
        assert self.part is not None
        round = self.part.round
        yield from self._stop(why)
        if not self.leaving:
            yield from self._ready(round)

    def fenced(self, why: str = "the lease ran out") -> Actions:
        """The lease ran out, and the guard has killed the workers; or, with another ``why``, all must begin anew."""
        if self.part is None:  # they ended meanwhile; what they reported may be the fence's doing
            yield self._say(self.member.stand, self.member.round, fenced=self.member.round)
        else:
            round = self.part.round
            yield from self._stop(why)
            yield from self._ready(round, fenced=round)

    def progressed(self, step: int) -> None:
        """Workers have saved what this many steps have made; it is said with the next word."""
        self.member = replace(self.member, progress=max(step, self.member.progress))

    def leave(self, notice: Notice) -> Actions:
        """The node must go. Its workers have the time until then to come to a step's end, and so do all others."""
        self._notice, self._leaves_by = notice, self._clock() + notice.seconds
        if self.part is not None:
            yield self._say(self.member.stand, self.member.round, leaving=notice)
            yield from self._ask(notice.reason, notice.seconds)

    def say_goodbye(self) -> Actions:
        """Say goodbye, so that nobody waits for our lease; a success is left standing."""
        if self.member.stand is not Stand.SUCCEEDED:
            yield self._say(Stand.LEFT, self.member.round)

    def _follow(self, state: State, lease_from: float, settled: bool) -> Actions:
        part = assignment(state, self.member.node)
        if self.part is not None and (part is None or part.round != self.part.round):
            if state.phase is Phase.JOINING and state.round == self.part.round and state.grace:
                yield from self._ask(state.reason, state.grace)
            else:
                yield from self._stop(state.reason)
        if self.part is not None or self.leaving:
            return
        if self.member.final:
            return
        if part is None:
            if state.is_surplus(self.member.node):
                yield from self.leave(Notice(f"surplus: the run was scaled to {state.most}", 0.0))
                return
            if state.phase is Phase.RUNNING and self._new and not self.prepared:
                return
            stands = self.member.stand, self.member.round
            if stands == (Stand.SUCCEEDED, state.round) and state.grace:
                return  # perhaps all others succeed too
            if stands != (Stand.READY, state.round):
                yield from self._ready(state.round)
        elif part.round > self.member.round and settled and self._holds(lease_from):
            self.part = part
            self._new = False
            yield Start(part, lease_from)
            yield self._say(Stand.RUNNING, part.round, failure=None)

    def _holds(self, lease_from: float) -> bool:
        """Whether the lease under which we were told still holds; others may have gone on without us otherwise."""
        return self._clock() < lease_from + self._lease

    def _ask(self, reason: str, seconds: float) -> Actions:
        """Ask the workers to come to a step's end, and stop them at once if they never will; asked again, sooner."""
        until = self._clock() + seconds
        if self._asked is not None and until >= self._asked:
            return
        if seconds > 0 and (yield Ask(reason, seconds)):
            self._asked = until
        else:
            yield from self._stop(reason)

    def _stop(self, reason: str) -> Actions:
        if self.part is not None:
            self.part = self._asked = None
            yield Stop(reason)

    def _ready(self, round: int, **changes: object) -> Actions:
        """Ask for a place in the round after ``round``, with a fresh port for its store."""
        port = yield Reserve()
        yield self._say(Stand.READY, round, port=port, **changes)

    def _say(self, stand: Stand, round: int, **changes: object) -> Say:
        assert may_say(self.member.stand, stand), f"a node that is {self.member.stand.value} says {stand.value}"
        self.member = replace(self.member, stand=stand, round=round, **changes)  # type: ignore[arg-type]  # its fields
        return Say(self.member)
