"""Every rule of the protocol, one row each."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hpcelastic.protocol.assignment import Assignment, assignment, prospect
from hpcelastic.protocol.budget import identity
from hpcelastic.protocol.decide import (
    Decision,
    checkpoint,
    close,
    decide,
    drain,
    fail,
    reopen,
    request_stacks,
    retire,
    scale,
)
from hpcelastic.protocol.findings import Charge, Rollback, RollbackDemand
from hpcelastic.protocol.rollback import ATTEMPTS
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, NodeState, Notice, Participant, Phase, Seen, State, View, name_of
from tests.protocol.builders import (
    created,
    dead,
    failed,
    failure,
    joining,
    left,
    member,
    node,
    participants,
    ready,
    running,
    runs,
    settings,
    succeeded,
    unproved,
    view,
)

JOB = {"job": "7.0", "job_nodes": 3}
AGAIN = {"job": "7.1", "job_nodes": 3}
NOTHING = Seen(None, alive=True)


def formed(decision: Decision) -> str:
    """Return the nodes of the round that the decision forms, by rank, and the standbys."""
    assert decision.next is not None, decision.reason
    assert decision.next.phase is Phase.RUNNING, decision.reason
    ranks = "".join(p.node.removesuffix("@0") for p in decision.next.participants)
    standbys = "".join(n.removesuffix("@0") for n in decision.next.standbys)
    return f"{ranks}+{standbys}" if standbys else ranks


def awaiting(*names: str) -> Decision:
    """Return the decision that waits for nodes to stop their workers of round 1."""
    reason = f"waiting for {', '.join(names)} to stop the workers of round 1"
    return Decision(None, reason, busy=tuple(f"{name}@0" for name in names))


# Phase RUNNING: when a round continues, and what ends it

BEFORE_ITS_START = [ready("a", 0), ready("b", 0)]


@pytest.mark.parametrize(
    ("seen", "quorum_for"),
    [
        pytest.param(view(runs("a", 1), runs("b", 1)), 0.0, id="all nodes run"),
        pytest.param(view(*BEFORE_ITS_START), 0.0, id="no node has started yet"),
        pytest.param(view(runs("a", 1), runs("b", 1)), 99.0, id="the last call has no effect"),
        pytest.param(view(runs("a", 1), succeeded("b", 1)), 0.0, id="one has succeeded"),
        pytest.param(view(runs("a", 1), dead(succeeded("b", 1))), 0.0, id="one has succeeded, then was lost"),
        pytest.param(
            view(runs("a", 1), Seen(member("b", NodeState.SUCCEEDED, 1), True), ready("b@1", 1, dead=("b@0",))),
            0.0,
            id="one has succeeded, then returned",
        ),
        pytest.param(view(runs("a", 1), succeeded("b", 1), ready("c", 1)), 0.0, id="a newcomer after a success"),
        pytest.param(view(runs("a", 1), runs("b", 1), ready("c", 0)), 0.0, id="a newcomer that knows an old round"),
        pytest.param(view(runs("a", 1), runs("b", 1), ready("c", -1)), 0.0, id="a newcomer that knows no round"),
        pytest.param(view(runs("a", 1), runs("b", 1), dead(ready("c", 1))), 0.0, id="a newcomer that is dead"),
        pytest.param(view(runs("a", 1), runs("b", 1), left("c")), 0.0, id="another node has left"),
        pytest.param(view(runs("a", 1), runs("b", 1), failed("c", 1)), 0.0, id="another node has failed"),
        pytest.param(view(runs("a", 1), runs("b", 1, failure=failure("b", 0))), 0.0, id="a failure of an old round"),
        pytest.param(
            view(runs("a", 1), ready("b", 0, failure=failure("b", 0))),
            0.0,
            id="a failure of an old round, not started yet",
        ),
        pytest.param(view(runs("a", 1), b=NOTHING), 0.0, id="a lease that is missing for a short time"),
        pytest.param(view(runs("a", 1), runs("b", 1), ready("c", 0, dead=("d@0",))), 0.0, id="another node is dead"),
    ],
)
def test_a_round_continues(seen: View, quorum_for: float) -> None:
    decision = decide(running("ab"), replace(seen, quorum_for=quorum_for))
    assert decision == Decision(None, "round 1 runs on 2 nodes")


FAILURE = "rank 0 failed on a: ValueError"
ENDS = [
    pytest.param(view(failed("a", 1), runs("b", 1)), Cause.WORKER, FAILURE, id="failure"),
    pytest.param(
        view(failed("a", 1, 5.0, "late"), failed("b", 1, 4.0, "early")),
        Cause.WORKER,
        "rank 2 failed on b: early",
        id="two failures, the earlier is the reason",
    ),
    pytest.param(view(failed("a", 1), dead(runs("b", 1))), Cause.WORKER, FAILURE, id="failure and loss"),
    pytest.param(view(failed("a", 1), left("b")), Cause.WORKER, FAILURE, id="failure and departure"),
    pytest.param(
        view(failed("a", 1), succeeded("b", 1)),
        Cause.WORKER,
        "rank 0 failed on a: ValueError",
        id="failure and success",
    ),
    pytest.param(
        view(failed("a", 1), runs("b", 1), ready("c", 1)),
        Cause.WORKER,
        FAILURE,
        id="failure and newcomer",
    ),
    pytest.param(view(dead(failed("a", 1)), runs("b", 1)), Cause.WORKER, FAILURE, id="failed, then lost"),
    pytest.param(view(runs("a", 1), dead(runs("b", 1))), Cause.NODE, "b was lost", id="loss"),
    pytest.param(view(runs("a", 1), dead(ready("b", 0))), Cause.NODE, "b was lost", id="loss before its start"),
    pytest.param(view(runs("a", 1), b=Seen(None, alive=False)), Cause.NODE, "b was lost", id="lease never found"),
    pytest.param(view(dead(runs("a", 1)), dead(runs("b", 1))), Cause.NODE, "a was lost", id="all lost"),
    pytest.param(view(succeeded("a", 1), dead(runs("b", 1))), Cause.NODE, "b was lost", id="loss beside a success"),
    pytest.param(
        view(runs("a", 1), runs("b", 1), ready("b@1", -1, dead=("b@0",))),
        Cause.NODE,
        "b was lost",
        id="its new incarnation reports its death",
    ),
    pytest.param(view(runs("a", 1), ready("b", 1)), Cause.NODE, "b stopped its workers", id="the lease expired"),
    pytest.param(view(runs("a", 1), left("b")), Cause.LEAVE, "b left", id="departure"),
    pytest.param(view(runs("a", 1), left("b", 0)), Cause.LEAVE, "b left", id="departure before its start"),
    pytest.param(view(runs("a", 1), dead(left("b"))), Cause.LEAVE, "b left", id="departure, then the lease expired"),
    pytest.param(
        view(runs("a", 1), left("b"), ready("b@1", -1, dead=("b@0",))),
        Cause.LEAVE,
        "b left",
        id="departure, then its new incarnation reports its death",
    ),
    pytest.param(view(runs("a", 1), left("b"), ready("c", 1)), Cause.LEAVE, "b left", id="departure and newcomer"),
    pytest.param(
        view(runs("a", 1), dead(runs("b", 1)), ready("c", 1)), Cause.NODE, "b was lost", id="loss and newcomer"
    ),
    pytest.param(
        view(runs("a", 1, leaving=Notice("preempted", 20.0)), left("b")),
        Cause.LEAVE,
        "b left",
        id="departure beside a warning",
    ),
]

SOON, LATER = Notice("preempted", 20.0), Notice("time limit", 90.0)
WELL = [
    pytest.param(view(runs("a", 1), runs("b", 1), ready("c", 1)), Cause.JOIN, "c joins", 120.0, id="newcomer"),
    pytest.param(
        view(runs("a", 1), runs("b", 1, leaving=SOON)),
        Cause.LEAVE,
        "b leaves within 20 s: preempted",
        20.0,
        id="warning",
    ),
    pytest.param(
        view(runs("a", 1, leaving=LATER), runs("b", 1, leaving=SOON), ready("c", 1)),
        Cause.LEAVE,
        "b and 1 more leave within 20 s: preempted",
        20.0,
        id="two warnings, the earlier deadline counts",
    ),
    pytest.param(
        view(succeeded("a", 1), runs("b", 1, leaving=SOON)),
        Cause.LEAVE,
        "b leaves within 20 s: preempted",
        20.0,
        id="warning beside a success",
    ),
]


@pytest.mark.parametrize(("seen", "cause", "reason", "grace"), WELL)
def test_a_round_without_a_fault_ends_with_a_grace_period(seen: View, cause: Cause, reason: str, grace: float) -> None:
    decision = decide(running("ab"), seen)
    assert decision.next == joining("ab", cause, grace=grace, reason=reason)


def test_a_warning_does_not_change_a_success() -> None:
    seen = view(succeeded("a", 1), succeeded("b", 1))
    warned = replace(seen.nodes["b@0"].member, leaving=SOON)  # type: ignore[type-var]  # it is there
    decision = decide(running("ab"), View({**seen.nodes, "b@0": Seen(warned, alive=True)}))
    assert decision.next is not None and decision.next.phase is Phase.SUCCEEDED


BREAKS = [
    pytest.param(view(failed("a", 1), runs("b", 1)), "rank 0 failed on a", id="failure"),
    pytest.param(view(runs("a", 1), dead(runs("b", 1))), "b was lost", id="loss"),
    pytest.param(view(runs("a", 1), ready("b", 1, fenced=1)), "b lost its workers", id="fenced"),
]


@pytest.mark.parametrize(("seen", "what"), BREAKS)
def test_a_fault_ends_the_grace_period(seen: View, what: str) -> None:
    state = joining("ab", Cause.JOIN, grace=120.0)
    again = decide(state, seen).next
    assert again == replace(state, grace=0.0, reason=f"{what} during the grace period")
    assert again is not None and decide(again, seen).next is None


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(runs("a", 1), ready("b", 1)), id="one has stopped"),
        pytest.param(view(runs("a", 1), left("b")), id="one has stopped and left"),
        pytest.param(view(runs("a", 1), dead(left("b"))), id="one has left, and its lease expired"),
    ],
)
def test_the_grace_period_lasts_while_nodes_stop(seen: View) -> None:
    decision = decide(joining("ab", Cause.LEAVE, grace=20.0), seen)
    assert (decision.next, decision.reason) == (None, "waiting for a to stop the workers of round 1")


@pytest.mark.parametrize(
    ("a", "reason"),
    [
        pytest.param(runs("a", 1, local_world_size=3), "a has another worker", id="one more"),
        pytest.param(runs("a", 1, local_world_size=4), "a has 2 more workers", id="two more"),
        pytest.param(runs("a", 1), None, id="as many"),
        pytest.param(runs("a", 1, local_world_size=1, starting=1), None, id="fewer, one is starting"),
        pytest.param(succeeded("a", 1, local_world_size=3), None, id="it has succeeded"),
    ],
)
def test_a_round_ends_for_workers_without_a_place(a: Seen, reason: str | None) -> None:
    decision = decide(running("ab"), view(a, runs("b", 1))).next
    assert (decision and (decision.cause, decision.reason)) == (reason and (Cause.JOIN, reason))
    assert decision is None or decision.grace > 0


@pytest.mark.parametrize("starting", [0, 2])
def test_a_node_whose_workers_are_all_starting_does_not_join(starting: int) -> None:
    newcomer = ready("c", 1, local_world_size=2 - starting, starting=starting)
    assert (decide(running("ab"), view(runs("a", 1), runs("b", 1), newcomer)).next is None) == bool(starting)


@pytest.mark.parametrize(
    ("least", "a", "sizes"),
    [
        pytest.param(1, {"local_world_size": 0, "starting": 2}, {"b": 2}, id="none is there"),
        pytest.param(1, {"local_world_size": 1, "starting": 1}, {"a": 1, "b": 2}, id="one is there"),
        pytest.param(2, {"local_world_size": 1, "starting": 1}, {"a": 1, "b": 2}, id="one is there, both nodes needed"),
        pytest.param(
            2, {"local_world_size": 0, "starting": 2}, {"a": 2, "b": 2}, id="none is there, both nodes needed"
        ),
    ],
)
def test_a_round_waits_for_starting_workers_only_if_it_needs_their_node(
    least: int, a: dict[str, int], sizes: dict[str, int]
) -> None:
    decided = decide(
        joining("ab", Cause.WORKER, given=settings(least, 2)), view(ready("a", 1, **a), ready("b", 1))
    ).next
    assert decided is not None
    assert {p.name: p.local_world_size for p in decided.participants} == sizes


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(succeeded("a", 1), succeeded("b", 1)), id="all live"),
        pytest.param(view(succeeded("a", 1), dead(succeeded("b", 1))), id="one is gone"),
        pytest.param(view(succeeded("a", 1), succeeded("b", 1), ready("c", 1)), id="a newcomer waits"),
    ],
)
def test_a_success_of_all_during_the_grace_period_ends_the_run(seen: View) -> None:
    ended = decide(joining("ab", Cause.JOIN, grace=120.0), seen).next
    assert ended == running("ab", phase=Phase.SUCCEEDED, reason="all workers of round 1 succeeded")


def test_a_node_that_succeeds_in_the_grace_period_waits_for_the_others() -> None:
    """The nodes that stopped continue, and so do all others."""
    state = joining("ab", Cause.JOIN, grace=120.0)
    assert decide(state, view(succeeded("a", 1), runs("b", 1))).next is None
    again = decide(state, view(succeeded("a", 1), ready("b", 1))).next
    assert again == replace(state, grace=0.0, reason="round 1 ended before all its nodes had succeeded")
    assert again is not None and decide(again, view(succeeded("a", 1), ready("b", 1))).next is None
    assert decide(again, view(succeeded("a", 1), succeeded("b", 1))).next is None


def test_a_leaving_node_is_in_no_further_round() -> None:
    state = joining("abc", Cause.LEAVE, grace=20.0, drained=("c",))
    decision = decide(state, view(ready("a", 1), ready("b", 1, leaving=SOON), ready("c", 1)))
    assert decision.next is not None
    assert [p.name for p in decision.next.participants] == ["a"]
    assert (decision.next.grace, decision.next.spent) == (0.0, {"leave": 1})


def test_a_drain_ends_the_round_of_the_node() -> None:
    drained = drain(running("ab"), ["b"]).next
    assert drained is not None and drained.phase is Phase.RUNNING
    ended = decide(drained, view(runs("a", 1), runs("b", 1))).next
    assert ended is not None and (ended.cause, ended.reason, ended.grace) == (Cause.LEAVE, "b is drained", 120.0)
    back = drain(drained, ["b"], undo=True).next
    assert back is not None and decide(back, view(runs("a", 1), runs("b", 1))).next is None


def test_a_drain_of_a_machine_drains_all_its_nodes() -> None:
    drained = drain(running("abc"), ["m", "c"]).next
    assert drained is not None and (drained.drained, drained.reason) == (("c", "m"), "c, m are drained")
    seen = view(runs("a", 1, host="m"), runs("b", 1, host="m"), runs("c", 1))
    ended = decide(drained, seen).next
    assert ended is not None and ended.reason == "a, b, c are drained"


def test_a_node_whose_incarnation_is_retired_leaves_and_may_return() -> None:
    retired = retire(running("ab"), ["b@0"]).next
    assert retired is not None and (retired.retired, retired.reason) == (("b@0",), "b is drained by the scheduler")
    assert retire(retired, ["b@0"]).next is None
    ended = decide(retired, view(runs("a", 1), runs("b", 1))).next
    assert ended is not None and (ended.cause, ended.reason) == (Cause.LEAVE, "b is drained by the scheduler")
    formed = decide(ended, view(ready("a", 1), left("b", 1), ready("b@1", 1))).next
    assert formed is not None and [p.node for p in formed.participants] == ["a@0", "b@1"]


def test_a_scale_changes_the_size_of_the_round() -> None:
    smaller, larger = scale(running("ab"), 1).next, scale(running("abcd"), 5).next
    assert smaller is not None and larger is not None
    ended = decide(smaller, view(runs("a", 1), runs("b", 1))).next
    assert ended is not None and (ended.cause, ended.reason) == (Cause.SCALE, "scaled to 1 node")
    formed = decide(ended, view(ready("a", 1), ready("b", 1))).next
    assert formed is not None and ([p.name for p in formed.participants], formed.standbys) == (["a"], ("b@0",))
    joins = decide(larger, view(*(runs(n, 1) for n in "abcd"), ready("e", 1))).next
    assert joins is not None and joins.cause is Cause.JOIN


def test_a_requested_checkpoint_ends_a_round_with_a_grace_period() -> None:
    requested = checkpoint(running("ab")).next
    assert requested is not None and (requested.cause, requested.grace) == (Cause.CHECKPOINT, 120.0)
    assert checkpoint(requested).next is None


def test_a_request_for_stacks_changes_nothing_else() -> None:
    state = running("ab")
    requested = request_stacks(state).next
    assert requested == replace(state, stacks=1)
    assert decide(requested, view(runs("a", 1), runs("b", 1))).next is None
    joining = checkpoint(state).next
    assert joining is not None and request_stacks(joining).next is None


@pytest.mark.parametrize(
    "request_of", [partial(scale, nodes=2), partial(drain, nodes=["a"]), checkpoint, request_stacks]
)
def test_a_run_that_has_ended_refuses_requests(request_of: Callable[[State], Decision]) -> None:
    assert request_of(running("ab", phase=Phase.CLOSED)).next is None


@pytest.mark.parametrize(
    ("round", "expected", "formed"),
    [
        pytest.param(0, None, False, id="the first round waits for the last call"),
        pytest.param(0, 1, False, id="SLURM has started one more"),
        pytest.param(0, 0, True, id="SLURM has started no more"),
        pytest.param(1, None, True, id="a later round includes late nodes"),
    ],
)
def test_a_pool_waits_for_elements_that_run(round: int, expected: int | None, formed: bool) -> None:
    names = "ab" if round else ""
    state = State(
        "run", settings(1, 4), round=round, participants=participants(names), cause=Cause.NODE if round else None
    )
    seen = view(*(ready(n, round, job=f"7_{n}") for n in "ab"))
    assert (decide(state, replace(seen, expected=expected)).next is not None) == formed


@pytest.mark.parametrize(("seen", "cause", "reason"), ENDS)
def test_a_round_ends(seen: View, cause: Cause, reason: str) -> None:
    state = running("ab", standbys=("z@0",), spent={"node": 1}, failures=(failure("a", 0),))
    lost = f"{reason.split()[0]}@0" if reason.endswith(" was lost") else ""
    ended = replace(state, phase=Phase.JOINING, cause=cause, standbys=(), lost=lost, reason=reason)
    assert decide(state, seen) == Decision(ended, reason)


@pytest.mark.parametrize(
    ("min_nodes", "max_nodes", "joins"),
    [
        pytest.param(1, 2, False, id="max reached"),
        pytest.param(1, 3, True, id="room"),
        pytest.param(2, 3, True, id="min"),
    ],
)
def test_a_newcomer_joins_if_a_seat_is_free(min_nodes: int, max_nodes: int, joins: bool) -> None:
    state = running("ab", given=settings(min_nodes, max_nodes))
    assert (decide(state, view(runs("a", 1), runs("b", 1), ready("c", 1))).next is not None) == joins


@pytest.mark.parametrize(
    ("waiting", "target", "joins"),
    [
        pytest.param("c", 0, False, id="one waits"),
        pytest.param("cd", 0, True, id="two wait"),
        pytest.param("cd", 2, False, id="scaled to two"),
        pytest.param("cd", 3, False, id="scaled to three, which makes one group"),
        pytest.param("cde", 5, True, id="scaled to five, which makes two groups"),
    ],
)
def test_newcomers_join_once_they_make_a_whole_group(waiting: str, target: int, joins: bool) -> None:
    state = running("ab", target=target, given=settings(2, 6, multiple=2))
    seen = view(runs("a", 1), runs("b", 1), *(ready(name, 1) for name in waiting))
    assert (decide(state, seen).next is not None) == joins


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(succeeded("a", 1), succeeded("b", 1)), id="all live"),
        pytest.param(view(succeeded("a", 1), dead(succeeded("b", 1))), id="one is gone"),
        pytest.param(view(succeeded("a", 1), succeeded("b", 1), ready("c", 1)), id="a newcomer waits"),
        pytest.param(view(succeeded("a", 1), succeeded("b", 1), dead(runs("c", 1))), id="another node is dead"),
    ],
)
def test_the_success_of_all_ends_the_run(seen: View) -> None:
    state = running("ab", spent={"worker": 2})
    reason = "all workers of round 1 succeeded"
    assert decide(state, seen) == Decision(replace(state, phase=Phase.SUCCEEDED, reason=reason), reason)


FINAL = dead(succeeded("a", 1, final=True))
"""A node that has succeeded, and whose agent has ended meanwhile."""


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        pytest.param(running("ab"), view(FINAL, runs("b", 1)), id="no other event"),
        pytest.param(running("ab"), view(FINAL, runs("b", 1), ready("c", 1)), id="a newcomer waits"),
        pytest.param(running("ab", target=1), view(FINAL, runs("b", 1)), id="the run is scaled down"),
        pytest.param(running("ab", drained=("a",)), view(FINAL, runs("b", 1)), id="the node is drained"),
    ],
)
def test_a_round_continues_after_a_final_success(state: State, seen: View) -> None:
    assert decide(state, seen).next is None


@pytest.mark.parametrize(
    ("other", "reason", "spent"),
    [
        pytest.param(ready("b", 1), "b stopped its workers", {"node": 1}, id="workers are stopped"),
        pytest.param(left("b"), "b left", {"leave": 1}, id="a node leaves"),
        pytest.param(dead(runs("b", 1)), "b was lost", {"node": 1}, id="a node is lost"),
        pytest.param(
            ready("b", 1, failure=failure("b", 1)), "rank 2 failed on b: ValueError", {"worker": 1}, id="a worker fails"
        ),
    ],
)
def test_no_round_follows_a_final_success(other: Seen, reason: str, spent: dict[str, int]) -> None:
    seen = view(succeeded("a", 1, final=True), other, ready("c", 1))
    ended = decide(running("ab"), seen).next
    assert ended is not None and (ended.phase, ended.reason) == (Phase.JOINING, reason)
    failed = decide(ended, seen).next
    assert failed is not None and (failed.phase, failed.spent) == (Phase.FAILED, spent)
    assert failed.reason == f"{reason}; a has succeeded already, so no round can follow"
    assert [one.rank for one in failed.failures] == ([2] if "worker" in spent else [])


def test_after_a_final_success_the_run_waits_for_running_workers() -> None:
    ended = joining("abc", Cause.WORKER)
    assert decide(ended, view(FINAL, ready("b", 1), runs("c", 1))).busy == ("c@0",)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.JOINING, Phase.SUCCEEDED])
def test_an_agent_that_gives_up_ends_the_run(phase: Phase) -> None:
    state = running("ab", phase=phase)
    ended = fail(state, "rank 2 failed on b", (failure("b", 1),)).next
    expected = {Phase.RUNNING: (Phase.FAILED, 1), Phase.JOINING: (Phase.CLOSED, 0)}
    assert (ended and (ended.phase, len(ended.failures))) == expected.get(phase)


@pytest.mark.parametrize(
    "other",
    [succeeded("b", 0), runs("b", 1), ready("b", 0)],
    ids=["of an older round", "running", "not started"],
)
def test_a_success_needs_all_nodes(other: Seen) -> None:
    assert decide(running("ab"), view(succeeded("a", 1), other)).next is None


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.final], ids=lambda phase: phase.value)
@pytest.mark.parametrize("seen", [view(failed("a", 1), dead(runs("b", 1)), ready("c", 1))], ids=["any view"])
def test_a_final_phase_is_final(phase: Phase, seen: View) -> None:
    state = running("ab", phase=phase, reason="the reason")
    assert decide(state, seen) == Decision(None, f"the run has {phase.value}: the reason")


# Phase JOINING: exclusivity


@pytest.mark.parametrize(
    ("b", "waits"),
    [
        pytest.param(ready("b", 1), False, id="ready"),
        pytest.param(left("b"), False, id="left"),
        pytest.param(left("b", 0), False, id="left before its start"),
        pytest.param(dead(runs("b", 1)), False, id="dead"),
        pytest.param(dead(left("b")), False, id="left, then dead"),
        pytest.param(Seen(None, False), False, id="lease never found"),
        pytest.param(runs("b", 1), True, id="running"),
        pytest.param(failed("b", 1), True, id="stopping after a failure"),
        pytest.param(succeeded("b", 1), True, id="succeeded"),
        pytest.param(ready("b", 0), True, id="may be about to start"),
        pytest.param(ready("b", -1), True, id="has seen no round"),
        pytest.param(NOTHING, True, id="lease not found yet"),
    ],
)
@pytest.mark.parametrize("quorum_for", [0.0, 99.0])
@pytest.mark.parametrize("cause", [*Cause, None])
def test_no_round_forms_while_workers_of_another_run(
    b: Seen, waits: bool, quorum_for: float, cause: Cause | None
) -> None:
    seen = view(ready("a", 1), ready("c", 1), b=b, quorum_for=quorum_for)
    decision = decide(joining("ab", cause, given=settings(max_nodes=2)), seen)
    if waits:
        assert decision == awaiting("b")
    else:
        assert decision.next is not None


def test_the_reason_names_all_awaited_nodes() -> None:
    decision = decide(joining("abc", Cause.NODE), view(runs("c", 1), ready("a", 1), runs("b", 1)))
    assert decision == awaiting("b", "c")


def test_a_node_whose_new_incarnation_reports_its_death_is_not_awaited() -> None:
    seen = view(ready("a", 1), runs("b", 1), ready("b@1", 1, dead=("b@0",)))
    assert formed(decide(joining("ab", Cause.NODE, given=settings(2, 2)), seen)) == "ab@1"


def test_the_report_of_a_dead_node_on_its_previous_incarnation_counts() -> None:
    seen = view(ready("a", 1), runs("b", 1), dead(ready("b@1", 1, dead=("b@0",))), quorum_for=30.0)
    assert formed(decide(joining("ab", Cause.NODE), seen)) == "a"


# Phase JOINING: heartbeats


@pytest.mark.parametrize(
    ("seen", "waits_for"),
    [
        pytest.param([ready("a", 1), unproved(ready("b", 1)), ready("c", 1)], "b", id="a member"),
        pytest.param([ready("a", 1), ready("b", 1), unproved(ready("c", 1))], "c", id="a newcomer"),
        pytest.param([ready("a", 1), unproved(ready("c", 1)), unproved(ready("b", 1))], "b, c", id="two"),
        pytest.param([ready("a", 1), unproved(dead(ready("b", 1))), ready("c", 1)], None, id="dead"),
        pytest.param(
            [ready("a", 1), unproved(ready("b", 1)), ready("b@1", 1, dead=("b@0",))],
            None,
            id="its new incarnation reports its death",
        ),
        pytest.param([ready("a", 1), ready("b", 1), unproved(ready("c", 0))], None, id="ready for an older round"),
        pytest.param([ready("a", 1), ready("b", 1), unproved(runs("c", 1))], None, id="not ready"),
        pytest.param([ready("a", 1), unproved(left("b")), ready("c", 1)], None, id="it has left"),
    ],
)
@pytest.mark.parametrize("quorum_for", [0.0, 99.0])
def test_a_round_forms_only_with_nodes_whose_heartbeat_was_seen(
    seen: list[Seen], waits_for: str | None, quorum_for: float
) -> None:
    state = joining("ab", Cause.NODE, given=settings(2, 2))
    decision = decide(state, view(*seen, quorum_for=quorum_for))
    if waits_for:
        assert decision == Decision(None, f"waiting for a heartbeat from {waits_for}")
    else:
        assert formed(decision)[0] == "a"


def test_a_round_continues_without_a_heartbeat() -> None:
    seen = view(unproved(runs("a", 1)), unproved(runs("b", 1)))
    assert decide(running("ab"), seen) == Decision(None, "round 1 runs on 2 nodes")


def test_the_wait_for_workers_precedes_the_wait_for_heartbeats() -> None:
    decision = decide(joining("ab", Cause.NODE), view(unproved(ready("a", 1)), runs("b", 1)))
    assert decision == awaiting("b")


# Phase JOINING: barrier


@pytest.mark.parametrize(
    ("given", "seen", "expected"),
    [
        pytest.param(settings(2, 4), view(), "waiting for nodes: 0 of at least 2 are ready", id="none"),
        pytest.param(settings(2, 4), view(ready("a", 0)), "waiting for nodes: 1 of at least 2 are ready", id="too few"),
        pytest.param(
            settings(2, 4),
            view(ready("a", 0), quorum_for=99.0),
            "waiting for nodes: 1 of at least 2 are ready",
            id="too few after the last call",
        ),
        pytest.param(
            settings(2, 4),
            view(ready("a", 0), dead(ready("b", 0)), quorum_for=99.0),
            "waiting for nodes: 1 of at least 2 are ready",
            id="a dead node is not ready",
        ),
        pytest.param(
            settings(2, 4),
            view(ready("a", 0), ready("b", -1), left("c", 0), runs("d", 0), quorum_for=99.0),
            "waiting for nodes: 1 of at least 2 are ready",
            id="ready for an older round is not ready",
        ),
        pytest.param(settings(2, 2), view(ready("a", 0), ready("b", 0)), "ab", id="max reached"),
        pytest.param(settings(1, 2), view(ready("c", 0), ready("b", 0), ready("a", 0)), "ab+c", id="more than max"),
        pytest.param(
            settings(2, 4), view(ready("a", 0), ready("b", 0), quorum_for=30.0), "ab", id="the last call is over"
        ),
        pytest.param(settings(1, 4, last_call=0.0), view(ready("a", 0)), "a", id="no last call"),
        pytest.param(
            settings(1, 4),
            view(ready("a", 0), quorum_for=29.9),
            "last call: 1 node ready, waiting for more nodes",
            id="unknown jobs",
        ),
        pytest.param(
            settings(1, 4),
            view(ready("a", 0, **JOB)),
            "last call: 1 node ready, waiting for 2 nodes",
            id="the job has more",
        ),
        pytest.param(
            settings(1, 4),
            view(ready("a", 0, **JOB), quorum_for=30.0),
            "a",
            id="the job has more, but the last call is over",
        ),
    ],
)
def test_the_barrier(given: Settings, seen: View, expected: str) -> None:
    decision = decide(created(given), seen)
    if " " in expected:
        quorum, short = expected.startswith("last call"), expected.startswith("waiting for nodes")
        assert decision == Decision(None, expected, quorum, short)
    else:
        assert formed(decision) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([ready("a", 1, **JOB)], 2, id="two have not been seen"),
        pytest.param([ready(n, 1, **JOB) for n in "abc"], 0, id="all are ready"),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, **JOB), ready("c", 0, **JOB)], 1, id="one is late"),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, **JOB), ready("c", -1, **JOB)], 1, id="one has just started"),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, **JOB), runs("c", 0, **JOB)], 0, id="one was lost earlier"),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, **JOB), dead(ready("c", 1, **JOB))], 0, id="one is dead"),
        pytest.param(
            [ready("a", 1, **JOB), ready("b", 1, **JOB), Seen(member("c", NodeState.LEFT, 1, **JOB), True)],
            0,
            id="one left",
        ),
        pytest.param([ready("a", 1, **JOB), ready("b", 1)], 0, id="the job of one is unknown"),
        pytest.param([ready("a", 1, job="7.0"), ready("b", 0, **JOB)], 1, id="the size of its job is unknown"),
        pytest.param([ready("a", 1, job_nodes=3), ready("b", 1, **JOB)], 0, id="its job is unknown"),
        pytest.param(
            [ready("a", 1, **JOB), ready("b", 1, **JOB), dead(ready("c", 1))], 1, id="a dead one of an unknown job"
        ),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, **JOB), left("c")], 1, id="one of an unknown job has left"),
        pytest.param([ready("a", 1, **JOB), ready("b", 1, job="8.0", job_nodes=2)], 3, id="two jobs"),
        pytest.param(
            [ready("a@1", 1, **AGAIN, dead=("a@0",)), runs("a", 1, **JOB), dead(runs("b", 1, **JOB))],
            2,
            id="the nodes of a requeued job count anew",
        ),
        pytest.param(
            [ready("a@1", 1, **JOB, dead=("a@0",)), ready("a", 1, **JOB), ready("b", 1, **JOB)],
            1,
            id="a node that returned counts once",
        ),
        pytest.param(
            [ready("a", 1, job="7.0", job_nodes=1), ready("b", 1, job="7.0", job_nodes=1)],
            0,
            id="more nodes than the job has",
        ),
    ],
)
def test_the_last_call_waits_for_expected_nodes(seen: list[Seen], expected: int) -> None:
    state = State("run", settings(1, 9), round=1, participants=(Participant("a@0", 2, "host-a", 1097),))
    seen = seen if any(s.member and s.member.node == "a@0" for s in seen) else [*seen, dead(runs("a", 1))]
    decision = decide(state, view(*seen))
    if expected == 0:
        assert decision.next is not None
    else:
        missing = {1: "1 node"}.get(expected, f"{expected} nodes")
        assert decision.reason.endswith(f"ready, waiting for {missing}")
        assert decision.quorum


# Phase JOINING: the round that forms


@pytest.mark.parametrize(
    ("before", "max_nodes", "seen", "after"),
    [
        pytest.param("", 4, [ready("b", 1), ready("a", 1)], "ab", id="SLURM's order at first"),
        pytest.param(
            "", 4, [ready("a", 1, order=2), ready("b", 1, order=1)], "ba", id="SLURM's order goes before the name"
        ),
        pytest.param(
            "", 4, [ready("b", 1, order=0), ready("a", 1, order=0)], "ab", id="the name if the order is equal"
        ),
        pytest.param("cab", 4, [ready(n, 1) for n in "abc"], "cab", id="survivors keep their order"),
        pytest.param("cab", 4, [left("c"), ready("b", 1), ready("a", 1)], "ab", id="also if the first has left"),
        pytest.param("cab", 4, [dead(runs("a", 1)), ready("b", 1), ready("c", 1)], "cb", id="also if one was lost"),
        pytest.param("db", 4, [ready(n, 1) for n in "abcd"], "dbac", id="newcomers follow"),
        pytest.param("db", 3, [ready(n, 1) for n in "abcd"], "dba+c", id="newcomers become standbys"),
        pytest.param("db", 2, [ready(n, 1) for n in "abcd"], "db+ac", id="a newcomer displaces no member"),
        pytest.param(
            "db",
            2,
            [ready("a", 1), dead(runs("d", 1)), ready("b", 1), ready("c", 1)],
            "ab+c",
            id="a standby takes a free seat",
        ),
        pytest.param(
            "cab",
            4,
            [ready("c@1", 1, dead=("c@0",)), runs("c", 1), ready("a", 1), ready("b", 1)],
            "c@1ab",
            id="a node that returned takes its old seat",
        ),
        pytest.param(
            "ba",
            4,
            [ready("a@1", 1), ready("b@1", 1), dead(runs("a", 1)), dead(runs("b", 1))],
            "b@1a@1",
            id="all have returned",
        ),
    ],
)
def test_ranks_are_stable(before: str, max_nodes: int, seen: list[Seen], after: str) -> None:
    state = joining(before, Cause.JOIN, given=settings(1, max_nodes, last_call=0.0))
    assert formed(decide(state, view(*seen))) == after


@pytest.mark.parametrize(
    ("before", "seen", "after"),
    [
        pytest.param("", [ready(n, 1) for n in "abc"], "ab+c", id="at first"),
        pytest.param("abcd", [ready("a", 1), ready("b", 1), ready("c", 1), dead(runs("d", 1))], "ab+c", id="a loss"),
        pytest.param("abcd", [dead(runs("a", 1)), *(ready(n, 1) for n in "bcd")], "bc+d", id="the first is lost"),
        pytest.param("ab", [ready(n, 1) for n in "abcd"], "abcd", id="a group joins"),
        pytest.param("ab", [ready(n, 1) for n in "abcde"], "abcd+e", id="a group and a node join"),
    ],
)
def test_a_round_has_whole_groups_and_the_other_nodes_stand_by(before: str, seen: list[Seen], after: str) -> None:
    state = joining(before, Cause.JOIN, given=settings(2, 4, last_call=0.0, multiple=2))
    assert formed(decide(state, view(*seen))) == after


def test_a_round_with_fewer_nodes_than_a_group_waits() -> None:
    state = joining("ab", Cause.NODE, given=settings(2, 4, last_call=0.0, multiple=2))
    decision = decide(state, view(ready("a", 1), dead(runs("b", 1))))
    assert (decision.next, decision.reason) == (None, "waiting for nodes: 1 of at least 2 are ready")


UNDER_ONE_SWITCH = settings(2, 4, last_call=0.0, multiple=2, within="switch")


def at(switch: str, names: str, round: int = 1) -> list[Seen]:
    """Return nodes under a switch, ready for the round after ``round``."""
    return [ready(name, round, topology=switch) for name in names]


def test_each_group_is_under_one_switch() -> None:
    seen = [*at("s1", "ac", 0), *at("s2", "bde", 0)]
    assert formed(decide(created(UNDER_ONE_SWITCH), view(*seen))) == "acbd+e"


def test_nodes_under_different_switches_wait() -> None:
    decision = decide(
        joining("ab", Cause.NODE, given=UNDER_ONE_SWITCH), view(*at("s1", "a"), *at("s2", "c"), dead(runs("b", 1)))
    )
    reason = "waiting for nodes: 0 of at least 2 make whole groups of 2 in one switch, of 2 that are ready"
    assert (decision.next, decision.reason, decision.short) == (None, reason, True)


@pytest.mark.parametrize(("switches", "joins"), [("s2 s3", False), ("s2 s2", True)])
def test_newcomers_join_once_they_make_a_group_under_one_switch(switches: str, joins: bool) -> None:
    newcomers = [ready(name, 1, topology=switch) for name, switch in zip("cd", switches.split(), strict=True)]
    seen = view(runs("a", 1), runs("b", 1), *newcomers)
    assert (decide(running("ab", given=UNDER_ONE_SWITCH), seen).next is not None) == joins


def test_the_last_call_waits_for_the_rest_of_a_group() -> None:
    given = settings(2, 4, last_call=30.0, multiple=2, within="switch")
    job = {"job": "7.0", "job_nodes": 5}
    seen = [ready(name, 0, topology="s1" if name in "ab" else "s2", **job) for name in "abc"]
    decision = decide(created(given), view(*seen))
    assert decision.next is None and "waiting for 2 nodes" in decision.reason


def test_a_round_has_all_its_fields() -> None:
    state = joining("ab", Cause.JOIN, 4, settings(1, 2), spent={"node": 2}, failures=(failure("a", 1),))
    decision = decide(state, view(ready("a", 4, local_world_size=3, port=99), ready("b", 4), ready("c", 4)))
    assert decision == Decision(
        State(
            "run",
            state.settings,
            Phase.RUNNING,
            5,
            (Participant("a@0", 3, "host-a", 99), *participants("b")),
            standbys=("c@0",),
            cause=None,
            spent={"node": 2, "join": 1},
            failures=(),
            reason="round 5 formed on 2 nodes",
        ),
        "round 5 formed on 2 nodes",
    )


def test_drained_incarnations_without_a_lease_are_forgotten() -> None:
    """Later incarnations of the same nodes may join, so they never return."""
    state = joining("ab", Cause.LEAVE, given=settings(1, 2), retired=("a@0", "x@0", "y@0"))
    decision = decide(state, view(left("a"), ready("b", 1), dead(ready("x", 1))))
    assert decision.next is not None and decision.next.retired == ("a@0", "x@0")


def test_a_failure_that_cannot_be_read_is_not_taken_for_the_last_one() -> None:
    """That one may be the same error in the same step, which ends the run."""
    before = replace(failure("a", 1), step=7, traceback='File "train.py", line 3')
    charged = Charge(before.timestamp, -1, identity(before))
    state = joining("ab", Cause.WORKER, 2, settings(2, 2), spent={"worker": 1}, failures=(before,), charge=charged)
    assert identity(before)
    decision = decide(state, view(ready("a", 2), ready("b", 2)))
    assert decision.next is not None and decision.next.phase is Phase.RUNNING
    assert (decision.next.failures, decision.next.charge) == ((), charged)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param(
            [ready("a", 1), ready("b", 1), ready("c", 1)], "round 2 formed on 2 nodes", id="all, or as standby"
        ),
        pytest.param([ready("c", 1), ready("a", 1), left("b")], "round 2 formed on 2 nodes, without b", id="one left"),
        pytest.param(
            [ready("d", 1), left("c"), dead(runs("b", 1)), dead(runs("a", 1))],
            "round 2 formed on 1 node, without a, b, c",
            id="none of them",
        ),
        pytest.param(
            [ready("b", 1), ready("c", 1), dead(runs("a", 1)), ready("a@1", 1)],
            "round 2 formed on 2 nodes",
            id="one has returned",
        ),
    ],
)
def test_the_reason_of_a_round_names_missing_nodes(seen: list[Seen], reason: str) -> None:
    assert decide(joining("cba", Cause.NODE, given=settings(1, 2, last_call=0.0)), view(*seen)).reason == reason


@pytest.mark.parametrize(
    ("before", "max_nodes"),
    [pytest.param("ab", 2, id="it was a member"), pytest.param("b", 3, id="it was a standby")],
)
def test_a_node_is_a_member_once(before: str, max_nodes: int) -> None:
    seen = view(ready("a", 1), ready("a@1", 1), ready("b", 1))
    decided = decide(joining(before, Cause.NODE, given=settings(2, max_nodes, last_call=0.0)), seen).next
    assert decided is not None
    assert sorted(p.name for p in decided.participants) == ["a", "b"]
    assert decided.standbys == ()


@pytest.mark.parametrize("twins", [("a", "a@1"), ("a@1", "a")], ids=["first in the view", "last in the view"])
@pytest.mark.parametrize("inside", ["a@0", "a@1"])
def test_the_incarnation_that_was_not_a_member_becomes_one(inside: str, twins: tuple[str, str]) -> None:
    state = running("", phase=Phase.JOINING, participants=(Participant(inside, 2, "host-a", 1097), *participants("b")))
    state = replace(state, settings=settings(2, 3, last_call=0.0), cause=Cause.NODE)
    decided = decide(state, view(*(ready(name, 1) for name in twins), ready("b", 1))).next
    assert decided is not None
    assert [p.node for p in decided.participants] == ["a@1" if inside == "a@0" else "a@0", "b@0"]


def test_two_incarnations_count_as_one_node() -> None:
    seen = view(ready("a", 0), ready("a@1", 0))
    assert decide(created(settings(2, 3)), seen).reason == "waiting for nodes: 1 of at least 2 are ready"


# The restart budget


def failed_and_back(
    name: str, round: int = 1, timestamp: float = 0.0, message: str = "ValueError", **changes: Any
) -> Seen:
    return ready(name, round, failure=failure(name, round, timestamp, message), **changes)


FAILED_THEN_LOST = dead(failed("b", 1))


@pytest.mark.parametrize(
    ("cause", "seen", "charged"),
    [
        pytest.param(Cause.WORKER, [failed_and_back("a"), ready("b", 1)], Cause.WORKER, id="only a failure"),
        pytest.param(
            Cause.WORKER, [failed_and_back("a"), failed_and_back("b")], Cause.WORKER, id="two failures count once"
        ),
        pytest.param(Cause.WORKER, [failed_and_back("a"), dead(runs("b", 1))], Cause.NODE, id="failure and loss"),
        pytest.param(
            Cause.WORKER, [failed_and_back("a"), dead(ready("b", 1))], Cause.NODE, id="failure, stop and loss"
        ),
        pytest.param(Cause.WORKER, [failed_and_back("a"), left("b")], Cause.NODE, id="failure and departure"),
        pytest.param(Cause.WORKER, [ready("a", 1), FAILED_THEN_LOST], Cause.NODE, id="the failing node was lost"),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a"), runs("b", 1), ready("b@1", 1, dead=("b@0",))],
            Cause.NODE,
            id="failure and loss of a node that returned",
        ),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a", local_world_size=0, starting=2), ready("b", 1)],
            Cause.WORKER,
            id="another worker is starting in its place",
        ),
        pytest.param(Cause.WORKER, [ready("a", 1), ready("b", 1)], Cause.WORKER, id="no report"),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a"), ready("b", 1, fenced=1)],
            Cause.NODE,
            id="failure, and an expired lease of another node",
        ),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a", fenced=1), ready("b", 1)],
            Cause.NODE,
            id="the lease of the failing node expired",
        ),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a"), ready("b", 1, fenced=0)],
            Cause.WORKER,
            id="a lease that expired in an older round",
        ),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a"), ready("b", 1), ready("c", 1, fenced=1)],
            Cause.WORKER,
            id="the lease of a node outside of the round expired",
        ),
        pytest.param(
            Cause.WORKER,
            [failed_and_back("a"), ready("b", 1), ready("b@1", 1)],
            Cause.NODE,
            id="one returned before its lease expired",
        ),
        pytest.param(Cause.NODE, [failed_and_back("a"), ready("b", 1)], Cause.NODE, id="a failure after a loss"),
        pytest.param(Cause.LEAVE, [failed_and_back("a"), left("b")], Cause.LEAVE, id="a failure after a departure"),
        pytest.param(
            Cause.JOIN, [failed_and_back("a"), ready("b", 1)], Cause.JOIN, id="a failure after the end for a newcomer"
        ),
    ],
)
def test_a_round_is_charged_once_by_its_true_cause(cause: Cause, seen: list[Seen], charged: Cause) -> None:
    state = joining("ab", cause, given=settings(last_call=0.0), spent={"worker": 1, "join": 4})
    decided = decide(state, view(*seen)).next
    assert decided is not None
    assert decided.spent == {**state.spent, charged.value: state.spent.get(charged.value, 0) + 1}
    assert decided.cause is None
    assert bool(decided.failures) == (charged is Cause.WORKER and seen != [ready("a", 1), ready("b", 1)])


def test_a_round_is_charged_once_all_workers_have_stopped() -> None:
    state = joining("ab", Cause.WORKER, given=settings(2, 2, restarts=0))
    assert decide(state, view(failed_and_back("a"), runs("b", 1))).next is None
    assert decide(state, view(failed_and_back("a"), dead(runs("b", 1)))).reason.startswith("waiting for nodes")


def test_the_first_round_charges_nothing() -> None:
    decided = decide(created(settings(last_call=0.0)), view(ready("a", 0))).next
    assert decided is not None
    assert (decided.round, decided.spent) == (1, {})


@pytest.mark.parametrize(
    ("budget", "spent", "ends"),
    [
        pytest.param(0, 0, True, id="no budget"),
        pytest.param(1, 0, False, id="the last restart"),
        pytest.param(1, 1, True, id="one restart too many"),
        pytest.param(3, 1, False, id="restarts are left"),
    ],
)
def test_the_run_fails_when_the_budget_is_exceeded(budget: int, spent: int, ends: bool) -> None:
    state = joining("ab", Cause.WORKER, given=settings(restarts=budget, last_call=0.0), spent={"worker": spent})
    decided = decide(state, view(failed_and_back("a"), ready("b", 1))).next
    assert decided is not None
    assert decided.phase is (Phase.FAILED if ends else Phase.RUNNING)
    assert decided.spent == {"worker": spent + 1}
    assert (decided.round, decided.cause) == (1 if ends else 2, None)
    assert decided.participants == state.participants


@pytest.mark.parametrize(
    ("budget", "suffix"), [(0, "(restarts.max is 0)"), (1, "(restarts.max is 1, all spent)")], ids=["none", "spent"]
)
@pytest.mark.parametrize(
    ("seen", "what"),
    [
        pytest.param([failed_and_back("a"), ready("b", 1)], "rank 0 failed on a: ValueError", id="one"),
        pytest.param(
            [failed_and_back("a", timestamp=2.0), failed_and_back("b", timestamp=1.0, message="first")],
            "rank 2 failed on b: first",
            id="the root cause",
        ),
        pytest.param([ready("a", 1), ready("b", 1)], "a worker failed", id="no report"),
    ],
)
def test_a_failed_run_has_a_reason(budget: int, suffix: str, seen: list[Seen], what: str) -> None:
    state = joining("ab", Cause.WORKER, given=settings(restarts=budget), spent={"worker": budget})
    assert decide(state, view(*seen)).reason == f"{what} {suffix}"


def test_other_causes_spend_nothing() -> None:
    for cause in (Cause.NODE, Cause.LEAVE, Cause.JOIN):
        state = joining("ab", cause, given=settings(restarts=0, last_call=0.0), spent={cause.value: 9})
        decided = decide(state, view(ready("a", 1), ready("b", 1))).next
        assert decided is not None
        assert (decided.phase, decided.spent, decided.restarts) == (Phase.RUNNING, {cause.value: 10}, 0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"happened": 2.0}, {"happened": 3.0}, id="the earlier one, on the filesystem's clock"),
        pytest.param(
            {"happened": 2.0, "timestamp": 9.0}, {"happened": 3.0, "timestamp": 1.0}, id="whatever the nodes' clocks"
        ),
        pytest.param({"happened": 3.0}, {"happened": 2.0, "echo": True}, id="an effect comes last"),
        pytest.param({"happened": 3.0}, {"happened": 2.0, "collective": True}, id="a failed collective too"),
        pytest.param({"happened": 3.0}, {"happened": None}, id="an unknown time comes last"),
        pytest.param({"happened": None}, {"happened": None}, id="the lower rank, if nothing is known"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_root_cause_is_the_first_failure_that_is_no_effect(
    first: dict[str, Any], second: dict[str, Any], swapped: bool
) -> None:
    names = ("b", "a") if swapped and first != second else ("a", "b")
    reports = [replace(failure(name, 1), **changes) for name, changes in zip(names, (first, second), strict=True)]
    seen = view(*(ready(name, 1, failure=report) for name, report in zip(names, reports, strict=True)), ready("c", 1))
    decided = decide(joining("abc", Cause.WORKER, given=settings(last_call=0.0)), seen).next
    assert decided is not None
    assert decided.failures == tuple(reports)


def test_reports_are_kept_root_cause_first() -> None:
    seen = view(failed_and_back("a", timestamp=3.0), failed_and_back("b", timestamp=2.0), ready("c", 1))
    decided = decide(joining("abc", Cause.WORKER, given=settings(last_call=0.0)), seen).next
    assert decided is not None
    assert decided.failures == (failure("b", 1, 2.0), failure("a", 1, 3.0))


def test_the_first_reports_keep_their_tracebacks_and_all_keep_their_messages() -> None:
    reports = [replace(failure(name, 1, 9.0), traceback=f"of {name}") for name in "abcdefghij"]
    reports[9] = replace(reports[9], happened=1.0)
    seen = view(*(ready(name, 1, failure=report) for name, report in zip("abcdefghij", reports, strict=True)))
    decided = decide(joining("abcdefghij", Cause.WORKER, given=settings(1, 10, last_call=0.0)), seen).next
    assert decided is not None
    assert [report.message for report in decided.failures] == ["ValueError"] * 10
    assert [report.traceback for report in decided.failures] == [*(f"of {name}" for name in "jabcdefg"), "", ""]


def test_the_state_has_the_first_reports_and_those_that_decide_what_follows() -> None:
    """All of thousands of nodes may fail for the same reason."""
    reports = [replace(failure("a", 1, float(rank)), rank=rank, node=f"n{rank}@0") for rank in range(100)]
    reports[80] = replace(reports[80], collective=True)
    reports[90] = replace(reports[90], rollback=RollbackDemand(5, 3))
    members = tuple(Participant(report.node, 1, "host", 1) for report in reports)
    seen = view(*(ready("a", 1, node=report.node, failure=report) for report in reports))
    state = replace(joining("", Cause.WORKER, given=settings(1, 100, last_call=0.0)), participants=members)
    decided = decide(state, seen).next
    assert decided is not None
    assert [report.rank for report in decided.failures] == [*range(64), 90, 80]


def test_a_node_that_the_end_of_its_round_drains_is_not_in_the_next_one() -> None:
    state = joining("abc", Cause.WORKER, given=settings(2, 3, last_call=0.0))
    state = replace(state, rollback=Rollback(0, 3, 5, ATTEMPTS - 1))
    report = replace(failure("b", 1, 2.0), rollback=RollbackDemand(5, 3))
    decided = decide(state, view(ready("a", 1), ready("b", 1, failure=report), ready("c", 1))).next
    assert decided is not None
    assert (decided.drained, [p.name for p in decided.participants]) == (("b",), ["a", "c"])


def test_a_success_counts_although_the_lease_expired_at_that_moment() -> None:
    state = joining("ab", Cause.JOIN, grace=120.0)
    seen = view(succeeded("a", 1, fenced=1), succeeded("b", 1))
    decided = decide(state, seen).next
    assert decided is not None and decided.phase is Phase.SUCCEEDED


# The user: close and reopen


@pytest.mark.parametrize(
    "state", [created(), running("ab"), joining("ab", Cause.WORKER)], ids=["created", "running", "joining"]
)
def test_close_ends_a_run(state: State) -> None:
    expected = replace(state, phase=Phase.CLOSED, cause=None, reason="enough")
    assert close(state, "enough") == Decision(expected, "enough")


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.final], ids=lambda phase: phase.value)
def test_close_does_not_change_an_ended_run(phase: Phase) -> None:
    assert close(running("ab", phase=phase), "enough") == Decision(None, f"the run has {phase.value} already")


@pytest.mark.parametrize(
    "state",
    [
        running("ab", phase=Phase.FAILED, spent={"worker": 4}, failures=(failure("a", 1),)),
        running("ab", phase=Phase.CLOSED, standbys=("c@0",)),
        running("ab", phase=Phase.SUCCEEDED),
        running("ab"),
        joining("ab", Cause.WORKER),
    ],
    ids=["failed", "closed", "succeeded", "running", "joining"],
)
def test_reopen_continues_with_the_next_round(state: State) -> None:
    again = reopen(state, settings(restarts=7))
    assert again == joining("ab", Cause.LEAVE, given=settings(restarts=7), reason="the run was reopened")


def test_reopen_before_any_round_waits_for_nodes() -> None:
    again = reopen(replace(created(), phase=Phase.CLOSED), settings())
    assert again == replace(created(), reason="the run was reopened")


def test_a_reopened_run_waits_for_living_members() -> None:
    again = reopen(running("ab", phase=Phase.CLOSED), settings(last_call=0.0))
    assert decide(again, view(runs("a", 1), dead(runs("b", 1)), ready("c", 1))).next is None
    assert formed(decide(again, view(dead(runs("a", 1)), dead(runs("b", 1)), ready("c", 1)))) == "c"


def test_failures_before_a_reopening_do_not_count_after_it() -> None:
    again = reopen(running("ab", phase=Phase.FAILED), settings(restarts=0, last_call=0.0))
    decided = decide(again, view(failed_and_back("a"), dead(failed("b", 1)))).next
    assert decided is not None
    assert (decided.phase, decided.restarts, decided.failures) == (Phase.RUNNING, 0, ())


# The assignment of a node


def test_the_fields_of_an_assignment() -> None:
    mixed = (Participant("b@0", 3, "host-b", 7), Participant("a@1", 1, "host-a", 8), Participant("c@0", 2, "host-c", 9))
    state = running("", round=5, participants=mixed)
    assert [assignment(state, p.node) for p in mixed] == [
        Assignment(5, group_rank, 3, first_rank, local_world_size, 6, "host-b", 7, "", first_rank, 6)
        for group_rank, first_rank, local_world_size in [(0, 0, 3), (1, 3, 1), (2, 4, 2)]
    ]


def test_workers_of_each_role_are_counted_separately() -> None:
    sizes, roles = (2, 3, 1, 4), ("", "reader", "", "reader")
    state = running("", participants=tuple(Participant(f"n{i}@0", sizes[i], "h", 1, role=roles[i]) for i in range(4)))
    parts = [assignment(state, p.node) for p in state.participants]
    assert [(p.role, p.role_first_rank, p.role_world_size, p.first_rank) for p in parts if p] == [
        ("", 0, 3, 0),
        ("reader", 0, 7, 2),
        ("", 2, 3, 5),
        ("reader", 3, 7, 6),
    ]


@pytest.mark.parametrize(
    ("round", "collective", "expected"),
    [
        pytest.param(4, True, True, id="the last round"),
        pytest.param(3, True, False, id="an older round"),
        pytest.param(4, False, False, id="a worker has ended"),
    ],
)
def test_a_failed_collective_of_the_last_round_is_known(round: int, collective: bool, expected: bool) -> None:
    failures = (replace(failure("b", 4), collective=False), replace(failure("a", round), collective=collective))
    part = assignment(running("ab", round=5, failures=failures), "b@0")
    assert part is not None and part.collective_failed is expected


@pytest.mark.parametrize("name", ["a@0", "d@0"], ids=["another incarnation", "another node"])
def test_a_node_outside_of_the_round_has_no_assignment(name: str) -> None:
    assert assignment(running("", participants=(Participant("a@1", 1, "host-a", 8),)), name) is None


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING], ids=lambda p: p.value)
def test_no_assignment_unless_a_round_runs(phase: Phase) -> None:
    assert assignment(running("ab", phase=phase), "a@0") is None


# Values


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(view(), set(), id="no node"),
        pytest.param(view(ready("a", 1), runs("b", 1)), set(), id="all live"),
        pytest.param(view(ready("a", 1), dead(runs("b", 1))), {"b@0"}, id="a lease expired"),
        pytest.param(view(a=Seen(None, alive=False), b=NOTHING), {"a@0"}, id="a lease was never found"),
        pytest.param(
            view(ready("a@1", 1, dead=("a@0", "x@0")), ready("a", 1)),
            {"a@0", "x@0"},
            id="the report of a new incarnation",
        ),
        pytest.param(view(dead(ready("a@1", 1, dead=("a@0",)))), {"a@0", "a@1"}, id="a dead new incarnation"),
        pytest.param(view(unproved(ready("a", 1))), set(), id="no heartbeat yet"),
    ],
)
def test_the_dead_nodes_of_a_view(seen: View, expected: set[str]) -> None:
    assert seen.dead == expected


def test_a_name_is_the_part_before_the_last_at_sign() -> None:
    assert [name_of(n) for n in ("a@0-1f", "user@host@2", node("z"))] == ["a", "user@host", "z"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: NodeRange(0, 2), r"nodes\.min is 0", id="no node"),
        pytest.param(lambda: NodeRange(3, 2), r"nodes\.min is 3, more than nodes\.max, 2", id="min above max"),
        pytest.param(lambda: NodeRange(spares=-1), r"nodes\.spares is -1", id="negative spares"),
        pytest.param(lambda: NodeRange(multiple=0), r"nodes\.multiple is 0; it must be 1 or more", id="no multiple"),
        pytest.param(
            lambda: NodeRange(3, 8, multiple=4),
            r"nodes\.min is 3, not a multiple of nodes\.multiple, 4; write 4$",
            id="min is no multiple",
        ),
        pytest.param(
            lambda: NodeRange(4, 9, multiple=4),
            r"nodes\.max is 9, not a multiple of nodes\.multiple, 4; write 8 or 12$",
            id="max is no multiple",
        ),
        pytest.param(
            lambda: NodeRange(2, 4, within="block"),
            r"nodes\.within is block, but nodes\.multiple is 1; set nodes\.multiple",
            id="groups of one node",
        ),
        pytest.param(lambda: RestartSettings(-1), r"restarts\.max is -1", id="negative budget"),
        pytest.param(lambda: RendezvousSettings(lease=0.0), r"rendezvous\.lease is 0", id="no lease"),
        pytest.param(lambda: RendezvousSettings(lease="long"), r"write a number of seconds, or auto", id="lease text"),  # type: ignore[arg-type]
        pytest.param(lambda: RendezvousSettings(min_lease=0.0), r"rendezvous\.min_lease is 0", id="no shortest lease"),
        pytest.param(lambda: RendezvousSettings(margin=0.0), r"rendezvous\.margin is 0", id="no margin"),
        pytest.param(lambda: RendezvousSettings(poll=-1.0), r"rendezvous\.poll is -1", id="negative poll"),
        pytest.param(lambda: RendezvousSettings(join_timeout=0.0), r"rendezvous\.join_timeout is 0", id="no time-out"),
        pytest.param(lambda: RendezvousSettings(last_call=-0.1), r"rendezvous\.last_call is -0\.1", id="last call"),
        pytest.param(
            lambda: RendezvousSettings(lease=1.0, poll=0.3), r"a quarter of rendezvous\.lease", id="slow poll"
        ),
    ],
)
def test_invalid_settings_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]  # a function, as just written


def test_settings_at_their_limits_are_accepted() -> None:
    settings = Settings(NodeRange(1, 1), RendezvousSettings(last_call=0.0, lease=4.0, poll=1.0), RestartSettings(0))
    assert (settings.nodes.wanted, settings.rendezvous.last_call, settings.restarts.max) == (1, 0.0, 0)


def test_an_assignment_with_chosen_seats_keeps_local_ranks() -> None:
    part = assignment(running("ab"), "b@0")
    assert part is not None
    assert [(seat, part.rank_of(seat), part.role_rank_of(seat)) for seat in part.local_ranks] == [(0, 2, 2), (1, 3, 3)]
    chosen = replace(part, seats=(0, 3))
    assert [(seat, chosen.rank_of(seat), chosen.role_rank_of(seat)) for seat in (0, 3)] == [(0, 2, 2), (3, 3, 3)]


def test_the_prospect_of_a_newcomer_follows_the_members() -> None:
    mixed = running("", participants=(Participant("a@0", 2, "host-a", 8), Participant("b@0", 3, "host-b", 9, role="r")))
    part = prospect(mixed, member("c", NodeState.READY, -1, role="r"), 4)
    assert (part.early, part.round, part.group_rank, part.group_world_size) == (True, 1, 2, 3)
    assert (part.first_rank, part.world_size, part.local_world_size) == (5, 9, 4)
    assert (part.role_first_rank, part.role_world_size) == (3, 7)


# Evidence of death


@pytest.mark.parametrize(
    ("seen", "evidence"),
    [
        pytest.param(view(runs("a", 1), runs("b", 1)), "", id="alive"),
        pytest.param(view(runs("a", 1), dead(runs("b", 1))), "lease", id="its lease has expired"),
        pytest.param(view(runs("a", 1, dead=(node("b"),)), runs("b", 1)), "reported by a", id="another node"),
        pytest.param(view(runs("a", 1, dead=(node("b"),)), dead(runs("b", 1))), "reported by a", id="both"),
        pytest.param(view(dead(runs("a", 1, dead=(node("b"),))), runs("b", 1)), "", id="a dead node's report"),
    ],
)
def test_how_the_death_of_a_node_is_known(seen: View, evidence: str) -> None:
    assert seen.evidence_of_death(node("b")) == evidence
