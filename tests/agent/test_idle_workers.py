"""The workers of a node that are in no round: what is started early, and what the node offers for the next round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent import idle_workers
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.idle_workers import IdleWorkers
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.ipc.worker_channel import Parked
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.node import NodeStateMachine, Publish, Transition
from hpcelastic.protocol.state import NodeState, Notice, Phase, Seen, State, View
from hpcelastic.rendezvous.observation import Observation
from tests.protocol.builders import joining, member, running, settings

WORKERS = 4
PART = Assignment(1, 0, 2, 0, WORKERS, 2 * WORKERS, "127.0.0.1", 1, "", 0, 2 * WORKERS)


class Group:
    """A group whose workers are numbers. Process ids are local ranks, as are descriptors."""

    def __init__(self, part: Assignment) -> None:
        self.part = part
        self.running = {seat: SimpleNamespace(local_rank=seat, rank=part.rank_of(seat)) for seat in part.local_ranks}
        self.resumed: list[int] = []
        self.discarded: list[int] = []
        self.pids = {part.rank_of(rank): rank for rank in part.local_ranks}
        self.parked: set[int] = set()
        self.spawn_requests: dict[int, Any] = {}
        self.killed = False

    def start_early(self, environ: Mapping[str, str]) -> None: ...

    def note_parked(self, pid: int) -> None:
        self.parked |= {pid} & self.running.keys()

    def kill(self) -> None:
        self.killed = True

    def discard(self, local_ranks: list[int]) -> None:
        self.discarded += local_ranks

    def close(self) -> None: ...


class Loop(EventLoop):
    """Watches nothing."""

    def watch(self, source: Any, handler: Callable[[], None]) -> None: ...

    def unwatch(self, source: Any) -> None: ...


@dataclass
class Session:
    """A session that records what it is told. The node is running in round 1."""

    multiple: int = 1
    published: list[tuple[int, int]] = field(default_factory=list)
    polls: int = 0
    reports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        this = member("a", NodeState.RUNNING, 1, local_world_size=WORKERS)
        self.spec = SimpleNamespace(member=this, settings=settings(self.multiple, 4, multiple=self.multiple))
        self.state_machine = NodeStateMachine(this)

    @property
    def member(self) -> Any:
        return self.state_machine.member

    def apply(self, transition: Transition) -> None:
        self.state_machine = transition.machine
        for action in transition.actions:
            assert isinstance(action, Publish)
            self.published.append((self.member.local_world_size, self.member.starting))

    def call_rendezvous(self, change: Any) -> None:
        self.polls += 1

    def report(self, line: str) -> None:
        self.reports.append(line)

    def log(self, event: object) -> None: ...


@dataclass
class Node:
    """The idle workers of a node, with all that they use."""

    session: Session
    launch: Any
    idle: IdleWorkers

    @property
    def offer(self) -> tuple[int, int]:
        return self.session.member.local_world_size, self.session.member.starting

    def waits(self, local_rank: int) -> None:
        self.idle.receive(local_rank, Parked(1))


def node(multiple: int = 1) -> Node:
    session = Session(multiple)
    resources = SimpleNamespace(fork_server=SimpleNamespace(times_learned=0))
    launch: Any = SimpleNamespace(
        make_group=Group, control_page=ControlPage.make(WORKERS), environ={}, resources=resources
    )
    return Node(session, launch, IdleWorkers(session, Loop(), launch))  # type: ignore[arg-type]  # as good as a session


def parked(*local_ranks: int) -> Any:
    """Return the group of the last round, of which these workers are left."""
    group = Group(PART)
    group.running = {rank: group.running[rank] for rank in local_ranks}
    return group


def lost_one(multiple: int = 1, seconds: float = 9.0, times_learned: int = 0) -> Node:
    """Return a node that has lost the worker with local rank 2, after ``seconds`` that a worker needs to start.

    Since then, the fork server has learned imports ``times_learned`` times.
    """
    made = node(multiple)
    made.idle.allow(early_start=True, seconds=seconds)
    made.launch.resources.fork_server.times_learned = times_learned
    made.session.published.clear()
    made.idle.keep(parked(0, 1, 3))
    made.idle.replace_lost(PART, allowed=True)
    return made


def test_a_lost_worker_starts_beside_the_others() -> None:
    made = lost_one()
    assert (made.offer, made.idle.count, made.idle.hold_ends) == ((3, 1), 4, None)
    assert made.session.published == []  # it is published with the next state of the node
    assert made.session.reports == ["starting local rank 2; the others do not wait for local rank 2"]
    made.waits(2)
    assert (made.offer, made.session.published) == ((4, 0), [(4, 0)])
    assert made.session.polls == 2


def test_a_node_whose_workers_start_fast_holds_for_a_moment() -> None:
    made = lost_one(seconds=0.1)
    assert made.idle.hold_ends is not None and made.idle.hold_ends <= boottime() + idle_workers._HOLD
    assert made.session.state_machine.holds
    made.waits(2)
    assert (made.idle.hold_ends, made.session.state_machine.holds, made.offer) == (None, False, (4, 0))


def test_a_node_whose_fork_server_has_learned_imports_holds_for_a_shorter_moment() -> None:
    made = lost_one(times_learned=1)
    assert made.idle.hold_ends is not None and made.idle.hold_ends <= boottime() + idle_workers._TRIAL_HOLD
    made.waits(2)
    assert (made.idle.hold_ends, made.offer) == (None, (4, 0))


@pytest.mark.parametrize(("started_before", "holds"), [(0.1, True), (5.0, False)], ids=["fast", "slow"])
def test_the_next_hold_depends_on_the_last_early_start(
    monkeypatch: pytest.MonkeyPatch, started_before: float, holds: bool
) -> None:
    made, now = lost_one(times_learned=1), boottime()
    monkeypatch.setattr(idle_workers, "boottime", lambda: now + started_before)
    made.waits(2)
    made.idle.hand_over(replace(PART, round=2))
    made.idle.keep(parked(0, 1, 3))
    made.idle.replace_lost(replace(PART, round=2), allowed=True)
    assert (made.idle.hold_ends is not None) == holds


def test_the_hold_ends_without_the_worker() -> None:
    made = lost_one(seconds=0.1)
    made.idle.end_hold()
    assert (made.idle.hold_ends, made.session.state_machine.holds, made.offer) == (None, False, (3, 1))


def test_a_node_of_a_whole_group_offers_all_workers_or_none() -> None:
    made = lost_one(multiple=2)
    assert made.offer == (0, 4)
    made.waits(2)
    assert made.offer == (4, 0)


@pytest.mark.parametrize(("early_start", "allowed"), [(False, True), (True, False)])
def test_without_an_early_start_the_round_starts_the_worker(early_start: bool, allowed: bool) -> None:
    made = node()
    made.idle.allow(early_start=early_start, seconds=9.0)
    made.idle.keep(parked(0, 1, 3))
    made.idle.replace_lost(PART, allowed=allowed)
    assert (made.offer, made.idle.count) == ((4, 0), 3)


def test_a_node_that_leaves_starts_nothing() -> None:
    made = node()
    made.idle.allow(early_start=True, seconds=9.0)
    made.session.state_machine = replace(made.session.state_machine, notice=Notice("SIGTERM", 5.0))
    made.idle.replace_lost(PART, allowed=True)
    assert made.idle.count == 0


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        pytest.param(3, (0, 1, 3), id="those that are there"),
        pytest.param(4, (0, 1, 2, 3), id="also the one that is starting"),
        pytest.param(2, (0, 1), id="some of them"),
    ],
)
def test_a_round_gets_the_workers_that_wait_first(count: int, chosen: tuple[int, ...]) -> None:
    assert lost_one().idle.choose(count) == chosen


def test_a_worker_that_waits_is_resumed_and_one_that_starts_is_not() -> None:
    for waits in (True, False):
        made = lost_one()
        if waits:
            made.waits(2)
        groups: list[Any] = made.idle.hand_over(replace(PART, round=2))
        assert [list(group.running) for group in groups] == [[0, 1, 3], *([[2]] if waits else [])]
        assert (made.idle.count, made.idle.parked) == (0, None)


@pytest.mark.parametrize(
    ("round", "ranks", "failed", "discarded"),
    [
        pytest.param(2, range(8, 12), True, [0, 2], id="an even round"),
        pytest.param(3, range(8, 12), True, [1, 3], id="an odd round"),
        pytest.param(2, range(7, 11), True, [1, 3], id="other ranks"),
        pytest.param(2, range(8, 12), False, [], id="the cause is known"),
    ],
)
def test_half_of_the_workers_that_may_be_at_fault_are_started_anew(
    round: int, ranks: range, failed: bool, discarded: list[int]
) -> None:
    made, last = node(), Group(replace(PART, round=round, first_rank=ranks[0]))
    last.resumed = list(ranks)
    made.idle.keep(last)  # type: ignore[arg-type]  # as good as a group
    made.idle.hand_over(replace(PART, round=round + 1, collective_failed=failed))
    assert last.discarded == discarded


def test_a_worker_that_is_new_or_has_completed_a_step_stays() -> None:
    made, last = node(), Group(replace(PART, round=2))
    last.resumed = [0, 1]  # 2 is new
    made.launch.control_page.marks(0).write(2, MarkKind.STEP, 2)
    made.idle.keep(last)  # type: ignore[arg-type]
    made.idle.hand_over(replace(PART, round=3, collective_failed=True))
    assert last.discarded == []


OUTSIDE = running("bc")


def observation(state: State, early_start: bool) -> Observation:
    """Return an observation of ``state`` and of a member whose script allows an early start or does not."""
    other = Seen(member("b", NodeState.RUNNING, 1, early_start=early_start), alive=True)
    return Observation(1, state, "", HeldLease(0.0, 1.0), view=View({"b": other}))


@pytest.mark.parametrize(
    ("state", "early_start", "starts"),
    [
        pytest.param(OUTSIDE, True, True, id="outside"),
        pytest.param(OUTSIDE, False, False, id="the script does not allow it"),
        pytest.param(running("ab"), True, False, id="a member"),
        pytest.param(joining("bc", None), True, False, id="a round is forming"),
        pytest.param(replace(OUTSIDE, phase=Phase.SUCCEEDED), True, False, id="the run has ended"),
    ],
)
def test_a_node_outside_a_round_starts_all_workers(state: State, early_start: bool, starts: bool) -> None:
    made = node()
    for _ in range(2):
        made.idle.observe(observation(state, early_start))
    assert made.idle.count == (WORKERS if starts else 0)
    assert made.offer == ((0, 4) if starts else (4, 0))


def test_a_standby_keeps_the_workers_that_it_has() -> None:
    made = node()
    made.idle.keep(parked(0, 1, 2, 3))
    made.idle.observe(observation(OUTSIDE, early_start=True))
    assert made.idle.count == WORKERS
    assert made.offer == (4, 0)


def test_all_are_forgotten_at_the_end() -> None:
    made = lost_one()
    made.idle.stop()
    assert (made.idle.count, made.idle.parked, made.offer) == (0, None, (4, 0))
