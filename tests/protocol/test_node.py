"""The node state machine alone: events in, actions out."""

from dataclasses import dataclass, field, replace

import pytest

from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.node import (
    Action,
    NodeStateMachine,
    ParkWorkers,
    Publish,
    RequestStop,
    ReservePort,
    StartWorkers,
    StopWorkers,
    Transition,
    WorkerOffer,
)
from hpcelastic.protocol.state import Cause, Member, NodeState, Notice, Phase, State
from tests.protocol.builders import created, failure, joining, member, running, settings

LEASE = 10.0
PORT = 4711
NOW = 100.0
FRESH, OLD = NOW - 1.0, NOW - LEASE
HELD = HeldLease(FRESH, FRESH + LEASE)


def state_machine(
    node_state: NodeState = NodeState.READY, round: int = 0, runs: State | None = None
) -> NodeStateMachine:
    """Return the machine of node ``a``. With ``runs``, its workers of that state's round are running."""
    return NodeStateMachine(member("a", node_state, round), assignment(runs, "a@0") if runs else None)


@dataclass
class Agent:
    """The caller of a node state machine. It executes the actions and records descriptions of them in ``done``."""

    machine: NodeStateMachine
    polls: bool = False
    now: float = NOW
    stop_takes: float = 0.0
    done: list[str] = field(default_factory=list)

    def observe(self, state: State, lease_from: float = FRESH, settled: bool = True) -> list[str]:
        """Return the actions that follow from an observation."""
        before, lease = len(self.done), HeldLease(lease_from, lease_from + LEASE)
        while self.apply(self.machine.observe(state, lease, self.now, settled=settled, polls=self.polls)):
            assert len(self.done) < 100
        return self.done[before:]

    def apply(self, transition: Transition) -> list[str]:
        """Execute the actions and return their descriptions, such as ``publish ready 1`` or ``end failed``."""
        before = len(self.done)
        self.machine = transition.machine
        for action in transition.actions:
            self.done.append(self._execute(action))
        return self.done[before:]

    def leave(self, notice: Notice) -> list[str]:
        return self.apply(self.machine.leave(notice, self.now, self.polls))

    def _execute(self, action: Action) -> str:
        if isinstance(action, Publish):
            return f"publish {self.member.node_state.value} {self.member.round}"
        if isinstance(action, StartWorkers):
            return f"start {action.part.round}"
        if isinstance(action, ParkWorkers | StopWorkers):
            self.now += self.stop_takes
            return "park" if isinstance(action, ParkWorkers) else "stop"
        if isinstance(action, ReservePort):
            self.machine = self.machine.with_port(PORT)
            return "reserve"
        return "request" if isinstance(action, RequestStop) else f"end {action.state.phase.value}"

    @property
    def member(self) -> Member:
        return self.machine.member


def agent_of(
    node_state: NodeState = NodeState.READY, round: int = 0, runs: State | None = None, polls: bool = False
) -> Agent:
    return Agent(state_machine(node_state, round, runs), polls)


ENDED = joining("ab", Cause.NODE, round=1)
RUNS_1, RUNS_2 = running("ab", round=1), running("ab", round=2)
WITHOUT_US = running("bc", round=2)


def unprepared(round: int) -> Agent:
    agent = agent_of(round=round)
    agent.machine = agent.machine.with_prepared(False)
    return agent


def test_it_is_a_value() -> None:
    agent = agent_of()
    before = agent.machine
    agent.observe(RUNS_1)
    assert agent.machine != before == state_machine()
    assert hash(before) == hash(state_machine())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(WITHOUT_US, [], id="others train meanwhile"),
        pytest.param(ENDED, ["reserve", "publish ready 1"], id="no round runs"),
        pytest.param(RUNS_1, ["start 1", "publish running 1"], id="the round needs it"),
    ],
)
def test_a_newcomer_asks_for_a_place_once_it_is_prepared(state: State, expected: list[str]) -> None:
    newcomer = unprepared(round=-1)
    assert newcomer.observe(state) == expected
    newcomer.machine = newcomer.machine.with_prepared(True)
    if not expected:
        assert newcomer.observe(state) == ["reserve", "publish ready 2"]


def test_the_first_publication_asks_for_a_place_if_a_round_forms() -> None:
    assert agent_of(round=-1).apply(state_machine(round=-1).begin(ENDED)) == ["reserve", "publish ready 1"]
    assert agent_of(round=-1).apply(state_machine(round=-1).begin(RUNS_1)) == []


def test_a_node_that_got_no_place_asks_again_once_it_is_prepared() -> None:
    late = unprepared(round=-1)
    assert late.apply(late.machine.begin(ENDED)) == ["reserve", "publish ready 1"]
    assert late.observe(WITHOUT_US) == []


def test_a_node_that_has_been_in_a_round_is_prepared() -> None:
    known = unprepared(round=0)
    assert known.observe(RUNS_1) == ["start 1", "publish running 1"]
    assert known.observe(WITHOUT_US)[1:] == ["reserve", "publish ready 2"]


@pytest.mark.parametrize(
    ("before", "state", "lease_from", "expected"),
    [
        pytest.param(state_machine(round=-1), created(), FRESH, ["reserve", "publish ready 0"], id="asks for a place"),
        pytest.param(state_machine(round=0), created(), FRESH, [], id="has asked for a place"),
        pytest.param(state_machine(), RUNS_1, FRESH, ["start 1", "publish running 1"], id="is in the round"),
        pytest.param(state_machine(), RUNS_1, OLD, [], id="starts nothing on an old observation"),
        pytest.param(state_machine(NodeState.FAILED, 1), RUNS_1, FRESH, [], id="starts a round once, which failed"),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1), RUNS_1, FRESH, [], id="starts a round once, which succeeded"
        ),
        pytest.param(state_machine(NodeState.READY, 1), RUNS_1, FRESH, [], id="starts a round once, which was fenced"),
        pytest.param(state_machine(NodeState.RUNNING, 1, RUNS_1), RUNS_1, FRESH, [], id="its round continues"),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            ENDED,
            FRESH,
            ["park", "reserve", "publish ready 1"],
            id="is ready only when its workers are parked",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            RUNS_2,
            FRESH,
            ["park", "start 2", "publish running 2"],
            id="has slept through the end of its round",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            RUNS_2,
            OLD,
            ["park"],
            id="has slept, and the lease has expired",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            WITHOUT_US,
            FRESH,
            ["park", "reserve", "publish ready 2"],
            id="the others have continued",
        ),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1),
            ENDED,
            FRESH,
            ["reserve", "publish ready 1"],
            id="has succeeded in a round that others ended",
        ),
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1),
            replace(RUNS_1, phase=Phase.CLOSED),
            FRESH,
            ["stop", "end closed"],
            id="the run was closed",
        ),
        pytest.param(
            state_machine(NodeState.SUCCEEDED, 1),
            replace(RUNS_1, phase=Phase.SUCCEEDED),
            OLD,
            ["end succeeded"],
            id="the run has succeeded",
        ),
    ],
)
def test_what_follows_from_the_register(
    before: NodeStateMachine, state: State, lease_from: float, expected: list[str]
) -> None:
    assert Agent(before).observe(state, lease_from) == expected


def test_no_worker_starts_if_the_lease_expires_while_others_are_parked() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.stop_takes = LEASE
    assert agent.observe(RUNS_2) == ["park"]
    assert agent.observe(RUNS_2, agent.now) == ["start 2", "publish running 2"]


def test_a_regained_lease_is_not_used_at_once() -> None:
    agent = agent_of()
    assert agent.observe(RUNS_1, settled=False) == []
    assert agent.observe(RUNS_1, settled=True) == ["start 1", "publish running 1"]


def test_a_failure_is_published_before_the_other_workers_are_parked() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    transition = agent.machine.worker_failed(failure("a", 1))
    assert transition.actions == (Publish(), ParkWorkers("rank 0 failed"))
    assert (transition.machine.member.failure, transition.machine.part) == (failure("a", 1), None)


def test_the_next_round_removes_the_failure() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.apply(agent.machine.worker_failed(failure("a", 1)))
    agent.observe(ENDED)
    agent.observe(RUNS_2)
    assert (agent.member.node_state, agent.member.failure, agent.member.port) == (NodeState.RUNNING, None, PORT)


def test_a_success_is_published_once_all_workers_have_ended() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    assert agent.apply(agent.machine.workers_succeeded()) == ["publish succeeded 1"]


@pytest.mark.parametrize(
    "state", [ENDED, WITHOUT_US, RUNS_2], ids=["the round ended", "others have continued", "it is a member"]
)
def test_an_agent_whose_success_is_final_follows_no_other_round(state: State) -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.apply(agent.machine.workers_succeeded(final=True))
    assert agent.member.final
    assert agent.observe(state) == []


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        pytest.param(
            state_machine(NodeState.RUNNING, 1, RUNS_1), ["park", "reserve", "publish ready 1"], id="workers ran"
        ),
        pytest.param(state_machine(NodeState.FAILED, 1), ["publish failed 1"], id="they had just failed"),
    ],
)
def test_an_expired_lease_is_published_with_its_round(machine: NodeStateMachine, expected: list[str]) -> None:
    agent = Agent(machine)
    assert agent.apply(machine.lease_expired()) == expected
    assert agent.member.fenced == 1


def test_a_lost_store_ends_the_round_like_an_expired_lease() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    transition = agent.machine.lease_expired("the store was lost")
    assert transition.actions[0] == ParkWorkers("the store was lost")
    agent.apply(transition)
    assert (agent.member.node_state, agent.member.fenced, agent.member.port) == (NodeState.READY, 1, PORT)


def test_a_success_stays_published_when_the_store_is_lost() -> None:
    agent = agent_of(NodeState.SUCCEEDED, 1)
    assert agent.apply(agent.machine.lease_expired("the store was lost")) == ["publish succeeded 1"]
    assert agent.member.fenced == 1


def test_a_failure_that_cannot_be_published_spends_no_restart() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.apply(agent.machine.worker_failed(failure("a", 1)))
    assert agent.apply(agent.machine.store_failed()) == ["publish failed 1"]
    assert (agent.member.fenced, agent.member.failure) == (1, failure("a", 1))
    assert agent.apply(agent.machine.store_failed()) == []


def test_a_failure_while_the_directory_fails_spends_no_restart() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    assert agent.apply(agent.machine.store_failed()) == []
    assert agent.apply(agent.machine.worker_failed(failure("a", 1))) == ["publish failed 1", "park"]
    assert agent.member.fenced == 1


def test_a_failure_once_the_directory_works_again_spends_one() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.apply(agent.machine.store_failed())
    agent.observe(RUNS_1)
    agent.apply(agent.machine.worker_failed(failure("a", 1)))
    assert agent.member.fenced == -1


WARNING = Notice("preempted", 20.0)
ENDS_WELL = joining("ab", Cause.JOIN, round=1, grace=120.0)


def test_a_leaving_node_starts_no_workers() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    assert agent.leave(WARNING) == ["publish running 1", "stop"]
    assert agent.member.leaving == WARNING
    assert agent.observe(RUNS_2) == []
    assert agent.apply(agent.machine.depart()) == ["publish left 1"]


def test_a_node_without_workers_leaves_at_once() -> None:
    agent = agent_of()
    assert agent.leave(WARNING) == []
    assert agent.machine.leaving and agent.machine.part is None


def test_workers_that_poll_end_their_step_before_the_node_leaves() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    assert agent.leave(WARNING) == ["publish running 1", "request"]
    assert agent.machine.seconds_to_stop(NOW + 5) == 15.0
    assert agent.machine.notice_at(NOW + 5) == replace(WARNING, seconds=15.0)
    assert agent.observe(joining("ab", Cause.LEAVE, round=1, grace=20.0)) == []
    assert agent.apply(agent.machine.workers_stopped()) == []
    assert (agent.machine.part, agent.machine.stop_deadline) == (None, None)


@pytest.mark.parametrize(
    ("state", "polls", "expected"),
    [
        pytest.param(ENDS_WELL, True, ["request"], id="no fault"),
        pytest.param(ENDS_WELL, False, ["park", "reserve", "publish ready 1"], id="they do not poll"),
        pytest.param(replace(ENDS_WELL, grace=0.0), True, ["park", "reserve", "publish ready 1"], id="a fault"),
        pytest.param(RUNS_2, True, ["park", "start 2", "publish running 2"], id="the others continued"),
    ],
)
def test_workers_are_requested_to_stop_if_there_is_no_fault(state: State, polls: bool, expected: list[str]) -> None:
    assert agent_of(NodeState.RUNNING, 1, RUNS_1, polls).observe(state) == expected


def test_workers_that_stopped_on_request_are_no_success() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(ENDS_WELL)
    assert agent.apply(agent.machine.workers_stopped()) == ["reserve", "publish ready 1"]


def test_a_success_in_the_grace_period_waits_for_the_others() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(ENDS_WELL)
    assert agent.apply(agent.machine.workers_succeeded()) == ["publish succeeded 1"]
    assert agent.observe(ENDS_WELL) == []
    assert agent.observe(replace(ENDS_WELL, grace=0.0)) == ["reserve", "publish ready 1"]


def test_a_fault_parks_workers_that_were_requested_to_stop() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(ENDS_WELL)
    assert agent.observe(replace(ENDS_WELL, grace=0.0)) == ["park", "reserve", "publish ready 1"]


def test_workers_that_do_not_stop_in_time_are_parked() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(ENDS_WELL)
    assert agent.apply(agent.machine.stop_timed_out()) == ["park", "reserve", "publish ready 1"]


def test_the_earlier_of_two_deadlines_counts() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.leave(Notice("time limit", 90.0))
    assert agent.observe(joining("ab", Cause.LEAVE, round=1, grace=20.0)) == ["request"]
    assert agent.machine.seconds_to_stop(NOW) == 20.0


def parked_agent() -> Agent:
    """Return the agent of a node whose workers were parked at the end of round 1."""
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    agent.observe(ENDED)
    assert agent.machine.parked
    return agent


def test_parked_workers_are_resumed_in_the_next_round() -> None:
    agent = parked_agent()
    assert agent.observe(RUNS_2) == ["start 2", "publish running 2"]
    assert not agent.machine.parked


def test_parked_workers_stay_while_others_continue() -> None:
    agent = parked_agent()
    assert agent.observe(WITHOUT_US) == ["reserve", "publish ready 2"]
    assert agent.machine.parked


def test_a_node_that_leaves_stops_its_parked_workers() -> None:
    agent = parked_agent()
    assert agent.leave(WARNING) == ["stop"]
    assert agent.machine.left and not agent.machine.parked


def test_the_end_of_the_run_stops_parked_workers() -> None:
    assert parked_agent().observe(replace(ENDED, phase=Phase.CLOSED)) == ["stop", "end closed"]


def test_an_expired_lease_leaves_parked_workers_alone() -> None:
    agent = parked_agent()
    assert agent.apply(agent.machine.lease_expired()) == ["publish ready 1"]
    assert agent.machine.parked


def test_workers_that_park_on_request_are_resumed_in_the_next_round() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(ENDS_WELL)
    assert agent.apply(agent.machine.workers_stopped(parked=True)) == ["reserve", "publish ready 1"]
    assert agent.machine.parked


def test_workers_of_a_leaving_node_that_park_on_request_are_stopped() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.leave(WARNING)
    assert agent.apply(agent.machine.workers_stopped(parked=True)) == ["stop"]
    assert agent.machine.left and not agent.machine.parked


def test_workers_save_unless_nodes_only_join() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    (request,) = agent.machine.observe(ENDS_WELL, HELD, NOW, polls=True).actions
    assert isinstance(request, RequestStop) and (request.seconds, request.save) == (120.0, False)
    (request,) = agent.machine.observe(replace(ENDS_WELL, cause=Cause.CHECKPOINT), HELD, NOW, polls=True).actions
    assert isinstance(request, RequestStop) and request.save


def test_workers_that_must_save_after_all_are_requested_again() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1, polls=True)
    agent.observe(replace(ENDS_WELL, grace=15.0))
    transition = agent.machine.leave(WARNING, NOW, True)
    assert transition.actions[-1] == RequestStop("preempted", 15.0, True)
    assert agent.apply(transition) == ["publish running 1", "request"]
    assert agent.leave(WARNING) == ["publish running 1"]


def test_a_drained_node_leaves() -> None:
    agent = agent_of(NodeState.RUNNING, 1, RUNS_1)
    assert agent.observe(replace(RUNS_1, drained=("a",))) == ["publish running 1", "stop"]
    assert agent.machine.leaving


STANDS_BY = running("bc", round=2, standbys=("d@0", "a@0"), given=settings(1, 4, spares=1))
STANDS_BY_FOR_A_GROUP = running("bc", round=2, standbys=("a@0",), given=settings(2, 6, multiple=2))


@pytest.mark.parametrize(
    ("state", "leaves"),
    [
        pytest.param(STANDS_BY, False, id="the run was not scaled"),
        pytest.param(replace(STANDS_BY, target=2), True, id="there are enough spares"),
        pytest.param(replace(STANDS_BY, target=2, standbys=("a@0", "d@0")), False, id="it is a spare"),
        pytest.param(replace(STANDS_BY, target=2, standbys=("d@0",)), False, id="it has come since"),
        pytest.param(replace(STANDS_BY, target=2, participants=running("ab").participants), False, id="it is a member"),
        pytest.param(replace(STANDS_BY_FOR_A_GROUP, target=6), False, id="the next group needs it"),
        pytest.param(replace(STANDS_BY_FOR_A_GROUP, target=2), True, id="no further group is wanted"),
    ],
)
def test_a_surplus_node_leaves(state: State, leaves: bool) -> None:
    agent = agent_of(NodeState.READY, 1)
    agent.observe(state)
    assert agent.machine.leaving is leaves
    assert agent.machine.notice is None or "scaled to 2" in agent.machine.notice.reason


def test_a_success_stays_published_at_a_departure() -> None:
    assert state_machine(NodeState.SUCCEEDED, 1).depart().actions == ()


@pytest.mark.parametrize("node_state", [NodeState.FAILED, NodeState.READY], ids=lambda state: state.value)
def test_a_description_that_comes_late_is_published(node_state: NodeState) -> None:
    agent = agent_of(node_state, 1)
    agent.machine = replace(agent.machine, member=replace(agent.member, failure=failure("a", 1)))
    described = replace(failure("a", 1), message="ValueError: described")
    assert agent.apply(agent.machine.failure_described(described)) == [f"publish {node_state.value} 1"]
    assert agent.member.failure == described


def test_the_description_of_a_failure_that_no_node_waits_for_is_dropped() -> None:
    assert state_machine(NodeState.RUNNING, 2, RUNS_2).failure_described(failure("a", 1)).actions == ()


def test_progress_that_is_reported_while_workers_are_stopped_is_published() -> None:
    stopped = state_machine(NodeState.RUNNING, 1, RUNS_1).stop_timed_out()
    assert stopped.actions[-1] == Publish()
    assert stopped.machine.with_progress(7).member.progress == 7
    assert stopped.machine.with_progress(7).with_progress(5).member.progress == 7


# Workers that start outside a round

OFFERED = WorkerOffer(1, 1, True)


def test_a_node_that_holds_asks_for_a_place_only_later() -> None:
    agent = agent_of(NodeState.FAILED, 1)
    agent.machine = agent.machine.with_workers(OFFERED, holds=True)
    assert agent.observe(ENDED) == []
    assert agent.apply(agent.machine.workers_offered(OFFERED, holds=False)) == []
    assert agent.observe(ENDED) == ["reserve", "publish ready 1"]
    assert (agent.member.local_world_size, agent.member.starting) == (1, 1)


@pytest.mark.parametrize(
    ("node_state", "published"),
    [
        (NodeState.READY, ["publish ready 1"]),
        (NodeState.RUNNING, ["publish running 1"]),
        (NodeState.FAILED, []),
        (NodeState.SUCCEEDED, []),
    ],
)
def test_a_changed_offer_is_published_once(node_state: NodeState, published: list[str]) -> None:
    agent = agent_of(node_state, 1, RUNS_1)
    assert agent.apply(agent.machine.workers_offered(OFFERED, holds=False)) == published
    assert agent.apply(agent.machine.workers_offered(OFFERED, holds=False)) == []
    assert (agent.member.local_world_size, agent.member.starting, agent.member.early_start) == OFFERED
