"""A simulated node: the parts of an agent, each of which acts in events of its own.

The main thread, the guard and the worker group of `hpcelastic.agent` are modelled; the rendezvous, with the protocol,
the leases and the register that it decides with, is the real code. A fault can come between any two events.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.state import Failure, Member, Stand, State
from tests.protocol.referee import Referee
from tests.protocol.under_test import Code

LEASE, MARGIN, POLL = 10.0, 2.0, 2.0
PATHS = SimpleNamespace(leases=Path("leases"), register=Path("register"))


class World(Protocol):
    """What a node is told by the simulation that it lives in."""

    now: float
    random: Random
    code: Code
    referee: Referee
    state: State

    def after(self, delay: float, action: Callable[[], None]) -> None: ...

    def log(self, event: str) -> None: ...

    def commit(self, writer: str, register: Any, number: int, new: State) -> bool: ...

    def echo(self, round: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What the rendezvous thread hands to the main thread."""

    state: State
    lease_from: float


@dataclass
class Group:
    """A worker group; ``running`` while a process of it may be left."""

    part: Assignment
    running: bool = True


class Draft:
    """Stands in for a lease, so that time can pass between the decision to renew it and the file's publication."""

    def __init__(self) -> None:
        self.member: Member | None = None

    def renew(self, member: Member) -> None:
        self.member = member


class Node:
    """One incarnation of a node: agent, guard and workers, with a clock of its own."""

    def __init__(self, world: World, member: Member) -> None:
        self.world, self.member, self.id = world, member, member.node
        self.gone = self.frozen = self.cut_off = self.leaving = self._parting = False
        self.held: list[tuple[Callable[[], None], bool]] = []
        self._rate, self._zero = 1 + world.random.uniform(-0.005, 0.005), world.random.uniform(0, 1000)
        self._rendezvous = world.code.rendezvous.Rendezvous(PATHS, self.id, world.state.settings, self.clock)
        self._lease, self._draft = self._rendezvous._lease, Draft()
        self._rendezvous._lease = self._draft
        self._turns, self._asleep, self._wakes = self._steps(), False, 0
        self.inbox: deque[Outcome] = deque()
        self._lease_until, self._lapsed = float("inf"), float("-inf")
        self.group: Group | None = None
        """The group that the main thread attends to."""

        self._last_group: Group | None = None
        self._stopping = self.starting = self._fence_told = False
        self._soon(self._turn, on_disk=True)

    def clock(self) -> float:
        return self._zero + self.world.now * self._rate

    @property
    def running(self) -> int | None:
        """The round whose workers run here at this moment."""
        group = self._last_group
        return group.part.round if group and group.running and not self.frozen else None

    # Rendezvous thread: the parts of `Rendezvous.step` over and over, interrupted before each operation on the disk

    def _turn(self) -> None:
        self._asleep = False
        wait = next(self._turns)
        self._wakes += 1
        wakes = self._wakes  # who is woken before the time takes no second turn when it comes
        self._soon(lambda: self._turn() if wakes == self._wakes else None, wait, on_disk=True)

    def _steps(self) -> Generator[float, None, None]:
        rendezvous = self._rendezvous
        while True:
            member = self.member
            rendezvous._renew(member)
            if self._draft.member is not None:
                yield self._latency()
                self._lease.renew(member)
                self._draft.member = None
                self.world.referee.published(member)
            yield self._latency()
            version, state = rendezvous._read()
            yield self._latency()
            decision = rendezvous._decide(version, state, member)
            while decision.next is not None:
                yield self._latency()
                if rendezvous._register.read().number == version.number:
                    yield self._latency()  # no lock is held: nothing rests on it
                    if not self.world.commit(self.id, rendezvous._register, version.number, decision.next):
                        break
                yield self._latency()
                version, state = rendezvous._read()
                decision = rendezvous._decide(version, state, member)
            rendezvous._phase = state.phase
            self._lease_until = rendezvous._lease_from + LEASE
            self.inbox.append(Outcome(state, rendezvous._lease_from))
            self._soon(self._main)
            if self._parting and member is self.member:
                self._soon(self._exit)
            self._asleep = member is self.member
            yield POLL if self._asleep else 0.0

    # Main thread

    @property
    def _busy(self) -> bool:
        return self._stopping or self.starting

    def _main(self) -> None:
        """What the guard has to say goes first: what it has killed is no failure of a worker."""
        if self._fence_told and not self._busy and not self.leaving:
            self._fenced()
        while self.inbox and not self._busy and not self.gone:
            outcome = self.inbox.popleft()
            if outcome.state.phase.final:
                self._stop(self._part)
            elif not self.leaving:
                self._follow(outcome)

    def _follow(self, outcome: Outcome) -> None:
        part: Assignment | None = self.world.code.assignment.assignment(outcome.state, self.id)
        if self.group is not None and (part is None or part.round != self.group.part.round):
            self._stop(lambda: self._follow(outcome))
        elif self.group is not None:
            return
        elif part is not None and part.round > self.member.round and self._may_start(outcome):
            self.starting = True
            self._soon(lambda: self._start(part, outcome))
        elif part is None and (self.member.stand, self.member.round) != (Stand.READY, outcome.state.round):
            self._say_ready(outcome.state.round)

    def _may_start(self, outcome: Outcome) -> bool:
        """Only on news that is younger than a lease: our place may be another's since."""
        return self.clock() < outcome.lease_from + LEASE

    def _start(self, part: Assignment, outcome: Outcome) -> None:
        self.starting = False
        self.world.log(f"{self.id} starts round {part.round} as group rank {part.group_rank}")
        self.world.referee.started(self.id, part, outcome.state)
        group = self.group = self._last_group = Group(part)
        if self._has_lapsed_since(outcome.lease_from):
            self._fence(group)
        self._say(replace(self.member, stand=Stand.RUNNING, round=part.round, failure=None))
        self._soon(lambda: self._finish(group), self.world.random.uniform(5, 25))
        if self.leaving:
            self._stop(self._part)
        self._main()

    def _finish(self, group: Group) -> None:
        if group.running and self.group is group:
            group.running, self.group = False, None
            self.world.log(f"{self.id} finishes round {group.part.round}")
            self.world.referee.finished.add((self.id, group.part.round))
            self._say(replace(self.member, stand=Stand.SUCCEEDED, round=group.part.round))

    def fail(self, group: Group, by_itself: bool) -> None:
        """A worker of the group fails; the agent says so first, then stops the others."""
        if not group.running or self.group is not group or self.frozen:
            return
        round, rank = group.part.round, group.part.first_rank
        self.world.log(f"{self.id}: rank {rank} fails in round {round}{'' if by_itself else ', for want of a peer'}")
        if by_itself:
            self.world.referee.crashed.add(round)
        failure = Failure(round, self.id, rank, 0, 1, "crashed", timestamp=self.clock())
        self._say(replace(self.member, stand=Stand.FAILED, round=round, failure=failure))
        self._stop(lambda: None)
        self.world.echo(round)

    def _stop(self, then: Callable[[], None]) -> None:
        """Stop the workers, if there are any, which may take long; the main thread does nothing else meanwhile."""
        group, self.group = self.group, None
        if group is None:
            then()
            return

        def stopped() -> None:
            group.running = self._stopping = False
            self.world.log(f"{self.id} has stopped round {group.part.round}")
            self.world.echo(group.part.round)
            self._part() if self.leaving else then()
            self._main()

        self._stopping = True
        self._soon(stopped, self.world.random.uniform(0, 4))

    def _say_ready(self, round: int, **changes: int) -> None:
        port = self.world.random.randrange(1024, 65536)
        self._say(replace(self.member, stand=Stand.READY, round=round, port=port, **changes))

    def _say(self, member: Member) -> None:
        self.member = member
        if self._asleep:
            self._asleep, self._wakes = False, self._wakes + 1
            self._soon(self._turn, on_disk=True)

    def leave(self) -> None:
        """Stop the workers and say goodbye."""
        self.leaving = True
        if not self._busy:
            self._stop(self._part)

    def _part(self) -> None:
        self.leaving = self._parting = True
        if self.member.stand is not Stand.SUCCEEDED:
            self._say(replace(self.member, stand=Stand.LEFT))
        self._soon(self._exit, 5.0)

    def _exit(self) -> None:
        if not self.gone:
            self.gone = True
            self.world.log(f"{self.id} has ended")
            self.world.referee.gone_at[self.id] = self.world.now

    # Guard, and what can happen to a node

    def guard(self) -> None:
        """Kill the workers once the lease has run out."""
        if self.frozen or self.clock() < self._lease_until:
            return
        self._lapsed = self.clock()
        self.world.referee.disturbed(self.id, self.world.now + LEASE + MARGIN)
        if self.running is not None:
            assert self._last_group is not None
            self._fence(self._last_group)

    def _has_lapsed_since(self, lease_from: float) -> bool:
        """Whether others may have gone on without this node since it was told to start workers."""
        return self._lapsed >= lease_from

    def _fence(self, group: Group) -> None:
        group.running = False
        self.world.log(f"{self.id} is fenced in round {group.part.round}")
        if not self._stopping:  # else the round had ended for this node already
            self.world.referee.fenced(group.part.round)
        self.world.echo(group.part.round)
        self._fence_told = True
        self._soon(self._main)

    def _fenced(self) -> None:
        """`Agent._guarded`."""
        self._fence_told = False
        group, self.group = self.group, None
        if group is None:
            self._say(replace(self.member, fenced=self.member.round))
        else:
            group.running = False
            self._say_ready(group.part.round, fenced=group.part.round)

    def kill(self) -> None:
        self.gone = True
        self.world.referee.gone_at[self.id] = self.world.now
        if self._last_group is not None:
            self._last_group.running = False
            self.world.echo(self._last_group.part.round)

    def _latency(self) -> float:
        return self.world.random.uniform(0, 0.2) if self.world.random.random() < 0.96 else 2.0

    def _soon(self, action: Callable[[], None], delay: float | None = None, *, on_disk: bool = False) -> None:
        """Do it after ``delay``, if this node then lives; while it is frozen or cut off the action is held."""

        def act() -> None:
            if self.frozen or (on_disk and self.cut_off):
                self.held.append((action, on_disk))
            elif not self.gone:
                action()

        self.world.after(self._latency() if delay is None else delay, act)

    def release(self) -> None:
        """Thaw, and reach the disk again: what was held happens now, in any order."""
        self.frozen = self.cut_off = False
        held, self.held = self.held, []
        for action, on_disk in held:
            self._soon(action, on_disk=on_disk)
