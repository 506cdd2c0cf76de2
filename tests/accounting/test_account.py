"""The account of a run: each second of each node in its category, from logs that tell all, and from others."""

from collections import Counter
from dataclasses import replace

import pytest

from hpcelastic.accounting import Account, Category, account
from hpcelastic.accounting.account import poisson_interval
from hpcelastic.accounting.journal import SECOND
from hpcelastic.protocol.events import HangExamined, PeerSuspected, StopRequested, TrainingTotals
from hpcelastic.protocol.state import Cause, Phase

from .logs import BEGIN, Node, decided, journal, micros


def seconds(found: Account) -> dict[str, float]:
    """Return the node time by category in seconds, of the categories that occur."""
    return {category.value: micros / SECOND for category, micros in found.categories.items() if micros}


def begin(node: Node) -> None:
    """Let a node join at 1 s and train in round 1 from 2 s on: entered at 3, restored at 4, first step at 5."""
    node.start(1.0, launched=0.0, job="77.0", nodes=2)
    node.state(2.0, Phase.RUNNING, 1)
    node.workers(2.5, 1)


FIRST = {"entered_at": 3.0, "restored_at": 4.0, "first_step_at": 5.0, "before": 0}


def test_a_run_without_a_fault() -> None:
    node = Node("n1")
    begin(node)
    node.train(105.0, 1, steps=100, last_step_at=104.0, done_at=105.0, saving=10.0, **FIRST)
    node.state(105.0, Phase.SUCCEEDED, 1)
    node.end(106.0)
    found = account(journal(node))
    assert seconds(found) == {
        "start": 1.0,
        "rendezvous": 1.0,
        "launch": 2.0,
        "restore": 1.0,
        "checkpoint": 10.0,
        "useful": 90.0,
        "stop": 1.0,
    }
    assert found.goodput == pytest.approx(90 / 106)
    assert found.ettr == pytest.approx(90 / 106)
    assert found.final and not found.faults


def failing_run(step: float = 1.0) -> tuple[Node, Node]:
    """Return two nodes. The worker of n1 fails at 15.5 s, in its 11th step. Round 2 begins with the state of step 4."""
    first, second = Node("n1"), Node("n2", skew=3600.0)
    for node in (first, second):
        begin(node)
    first.fail(15.5, 1)
    decided(first, 15.8, Phase.JOINING, 1)
    for node in (first, second):
        node.state(16.0, Phase.JOINING, 1, cause=Cause.WORKER, reason="rank 0 failed on n1: ValueError")
        node.train(16.9, 1, steps=11, last_step_at=15.0, samples=(1.0, 3.0, 7.0), **FIRST)  # type: ignore[arg-type]
        node.park(17.0, 1)
        node.state(18.0, Phase.RUNNING, 2)
        node.workers(18.0, 2)
        node.train(
            40.0,
            2,
            steps=20,
            last_step_at=39.0,
            done_at=40.0,
            entered_at=18.5,
            restored_at=19.5,
            first_step_at=20.0,
            before=4,
        )
        node.state(40.0, Phase.SUCCEEDED, 2)
        node.end(40.0)
    return first, second


def test_a_failure_costs_detection_and_the_steps_that_are_done_again() -> None:
    found = account(journal(*failing_run()))
    # n1: a partial step, no detection; n2: the same until 15.5, then detection.
    # Round 2 has a step per second. Those of steps 4 to 9 are done again.
    assert seconds(found) == {
        "start": 2.0,
        "rendezvous": 2.0 + 2.0,
        "launch": 2 * 2.0 + 2 * 1.0,
        "restore": 2 * 1.0 + 2 * 1.0,
        "detection": 0.5,
        "stop": 1.0 + 1.5,
        "redone": 2 * 0.5 + 2 * 6.0,
        "useful": 2 * 10.0 + 2 * 14.0,
    }
    (fault,) = found.faults
    assert (fault.round, fault.node, fault.reason) == (1, "n1", "rank 0 failed on n1: ValueError")
    assert fault.stopped == round(10.5 * SECOND)  # from 15.5 to the first new step, at 26
    assert sum(fault.cost.values()) == round((2.0 + 2.0 + 2.0 + 0.5 + 2.5 + 13.0) * SECOND)


def test_clocks_that_differ_change_nothing() -> None:
    first, second = failing_run()
    assert second.skew == 3600.0
    other = failing_run()
    for node in other:
        for i, event in enumerate(node.events):
            node.events[i] = type(event)(event.time - 1000.0 * (i % 7), event.node, event.event, event.up)
    assert account(journal(*other)).categories == account(journal(first, second)).categories


def test_a_node_that_dies_trains_until_its_neighbour_notices() -> None:
    first, second = Node("n1"), Node("n2")
    for node in (first, second):
        begin(node)
    first.log(12.0, PeerSuspected(peer="n2@0-a", sign="link lost"))
    first.state(12.4, Phase.JOINING, 1, cause=Cause.NODE, lost="n2@0-a", reason="n2 was lost")
    first.train(12.4, 1, steps=8, last_step_at=11.5, **FIRST)
    first.park(12.5, 1)
    first.state(13.0, Phase.RUNNING, 2)
    first.workers(13.0, 2)
    times = {"entered_at": 13.0, "restored_at": 13.0, "first_step_at": 14.0, "last_step_at": 19.0, "done_at": 20.0}
    first.train(20.0, 2, steps=6, before=7, **times)
    first.state(20.0, Phase.SUCCEEDED, 2)
    first.end(20.0)
    found = account(journal(first, second))
    assert [(s.begin, s.end) for s in found.segments if s.node == "n2@0-a"][-1][1] == round((1.7e9 + 12.0) * SECOND)
    assert seconds(found)["detection"] == pytest.approx(0.4)
    assert seconds(found)["useful"] == 2 * 6.5 + 6.0
    assert seconds(found)["redone"] == 2 * 0.5
    assert "unknown" not in seconds(found)
    assert found.faults[0].node == "n2"


@pytest.mark.parametrize(
    ("silence", "waited", "detection", "unknown"),
    [(9.0, 4.0, 9.0, 0.0), (None, 0.0, 0.0, 13.0), (20.0, 0.0, 13.0, 0.0)],
)
def test_a_node_that_dies_before_it_knows_its_round(
    silence: float | None, waited: float, detection: float, unknown: float
) -> None:
    """It joins at 1 s and logs a version at 2 s. It is declared dead at 15 s, ``silence`` after its last renewal."""
    first, second = Node("n1"), Node("n2")
    begin(first)
    second.start(1.0, launched=0.0, job="77.0", nodes=2)
    second.state(2.0, Phase.JOINING, 0)
    decided(first, 15.0, Phase.JOINING, 1, lost="n2@0-a", silence=silence)
    first.state(15.0, Phase.JOINING, 1, cause=Cause.NODE, lost="n2@0-a", reason="n2 was lost")
    found = account(journal(first, second))
    own = [segment for segment in found.segments if segment.node == "n2@0-a"]
    times = Counter[Category]()
    for each in own:
        times[each.category] += each.duration
    assert times[Category.RENDEZVOUS] == round((1.0 + waited) * SECOND)
    assert times[Category.DETECTION] == round(detection * SECOND)
    assert times[Category.UNKNOWN] == round(unknown * SECOND)
    assert {each.after for each in own if each.category is Category.DETECTION} <= {1}


@pytest.mark.parametrize(("silence", "unknown", "detection"), [(4.0, 9.0, 3.0), (None, 12.0, 0.0)])
def test_a_lost_round_without_totals_is_unknown_until_the_last_sign_of_its_node(
    silence: float | None, unknown: float, detection: float
) -> None:
    """The agent of the only node is killed. The next one begins after 12 s, and finds its lease after 13 s."""
    first, again = Node("n1"), Node("n1", incarnation="0-b")
    begin(first)
    again.start(14.5, launched=14.0, job="77.0", nodes=1)
    decided(again, 15.0, Phase.JOINING, 1, lost="n1@0-a", silence=silence)
    again.state(15.0, Phase.JOINING, 1, cause=Cause.NODE, lost="n1@0-a")
    found = account(journal(first, again))
    own = [segment for segment in found.segments if segment.node == "n1@0-a" and segment.begin >= micros(1.5)]
    times = Counter[Category]()
    for each in own:
        times[each.category] += each.duration
    assert times == {
        category: round(duration * SECOND)
        for category, duration in ((Category.UNKNOWN, unknown), (Category.DETECTION, detection))
        if duration
    }


def test_a_hang_lasts_from_the_last_step_to_the_end_of_the_round() -> None:
    node = Node("n1")
    begin(node)
    hang = HangExamined(
        round=1, number=1, verdict="behind", ranks=(0,), certain=True, text="", action="restart", path=""
    )
    node.log(70.0, hang)
    node.fail(70.2, 1)
    node.state(70.3, Phase.JOINING, 1, cause=Cause.WORKER, reason="rank 0 failed on n1: hung")
    node.train(70.4, 1, steps=11, last_step_at=15.0, **FIRST)
    node.park(70.5, 1)
    found = account(journal(node))
    assert seconds(found)["hang"] == pytest.approx(55.2)
    assert seconds(found)["useful"] == 10.0


def test_workers_that_are_asked_to_stop_train_to_the_end_of_a_step() -> None:
    node = Node("n1")
    begin(node)
    node.state(15.2, Phase.JOINING, 1, cause=Cause.JOIN, reason="n2 joins")
    node.log(15.2, StopRequested(round=1, seconds=60.0, reason="n2 joins"))
    node.train(16.4, 1, steps=12, last_step_at=16.0, **FIRST)
    node.park(16.5, 1)
    found = account(journal(node))
    assert (seconds(found)["useful"], seconds(found)["stop"]) == (11.0, 0.5)
    assert not found.faults


def test_a_job_waits_in_the_queue_and_again_after_it_was_requeued() -> None:
    first, again = Node("n1"), Node("n1", incarnation="1-b")
    first.start(10.0, launched=9.0, job="77.0", nodes=2)
    first.end(20.0, Phase.RUNNING)
    again.start(30.0, launched=29.0, job="77.1", nodes=2)
    again.end(35.0)
    found = account(journal(first, again, jobs={"77": 0.0}))
    # Two nodes from 0 s to 35 s, of which one runs from 9 to 20 and from 29 to 35.
    assert found.total == round(70 * SECOND)
    assert found.categories[Category.QUEUE] == round((70 - 11 - 6) * SECOND)
    assert found.allocated == round(17 * SECOND)


def test_an_agent_that_is_restarted_in_place_leaves_no_gap() -> None:
    first, again, start = Node("n1"), Node("n1", incarnation="0-b"), BEGIN + 4.0
    first.start(10.0, launched=9.0, job="77.0", nodes=1, job_start=start)
    first.log(20.0, StopRequested(round=1, seconds=1.0, reason="x"))
    again.start(23.0, launched=22.0, job="77.0", nodes=1, job_start=start)
    again.end(30.0)
    found = account(journal(first, again, jobs={"77": 0.0}))
    # It waits from 0 to 4 s. The job starts at 4 s, and the second agent at the end of the first one.
    assert seconds(found)["queue"] == 4.0
    assert seconds(found)["start"] == 6.0 + 3.0
    assert found.total == round(30 * SECOND)


def test_a_disturbance_of_the_network_is_no_death() -> None:
    first, second = Node("n1"), Node("n2")
    for node in (first, second):
        begin(node)
    first.log(12.0, PeerSuspected(peer="n2@0-a", sign="link lost"))
    first.train(30.0, 1, steps=26, last_step_at=30.0, **FIRST)
    found = account(journal(first, second, now=31.0))
    ends = {segment.node: segment.end for segment in found.segments}
    assert ends == dict.fromkeys(("n1@0-a", "n2@0-a"), micros(31.0))


def test_a_job_that_has_not_started_waits() -> None:
    found = account(journal(jobs={"77": 0.0}, wanted=4, now=25.0))
    assert seconds(found) == {"queue": 100.0}
    assert found.goodput is None


def test_a_node_that_stands_by() -> None:
    node = Node("n3")
    node.start(1.0, launched=1.0)
    node.state(2.0, Phase.RUNNING, 1)
    node.state(50.0, Phase.SUCCEEDED, 1)
    node.end(50.0)
    assert seconds(account(journal(node))) == {"rendezvous": 1.0, "spare": 48.0}


def test_a_script_without_marks_has_no_goodput() -> None:
    node = Node("n1")
    begin(node)
    node.state(105.0, Phase.SUCCEEDED, 1)
    node.end(106.0)
    found = account(journal(node))
    assert seconds(found)["unknown"] == 103.0
    assert found.goodput is None and found.ettr is None and not found.marked


def test_workers_that_are_stopped_before_their_first_mark_have_only_started() -> None:
    node = Node("n1")
    begin(node)
    node.state(10.0, Phase.JOINING, 1, cause=Cause.JOIN)
    node.park(11.0, 1)
    node.state(12.0, Phase.RUNNING, 2)
    node.workers(12.5, 2)
    assert seconds(account(journal(node)))["unknown"] == 8.5  # a script without marks, as far as is known
    node.train(30.0, 2, steps=10, before=0, first_step_at=20.0, last_step_at=30.0, done_at=30.0)
    node.state(30.0, Phase.SUCCEEDED, 2)
    node.end(30.0)
    found = seconds(account(journal(node)))
    assert found == {"start": 1.0, "rendezvous": 2.0, "launch": 17.0, "useful": 10.0}


@pytest.mark.parametrize(("told", "unknown", "launch"), [(False, 6.5, 0.0), (True, 0.0, 7.0)])
def test_a_round_that_is_lost_before_its_first_mark_has_only_started(told: bool, unknown: float, launch: float) -> None:
    """n2 is lost 7 s after the beginning of round 2, whose workers had no marks so far."""
    first, second = Node("n1"), Node("n2")
    for node in (first, second):
        begin(node)
    first.train(10.0, 1, steps=5, last_step_at=9.0, done_at=10.0, **FIRST)
    second.state(10.0, Phase.JOINING, 1, cause=Cause.LEAVE)
    second.park(10.0, 1)
    second.state(11.0, Phase.RUNNING, 2)
    second.workers(12.0, 2)
    decided(first, 18.0, Phase.JOINING, 2, lost="n2@0-a", silence=0.5)
    first.state(18.0, Phase.JOINING, 2, cause=Cause.NODE, lost="n2@0-a")
    totals = {"n2@0-a": TrainingTotals(round=2, rank=0, steps=0)} if told else {}
    found = account(replace(journal(first, second), totals=totals))
    own = [segment for segment in found.segments if segment.node == "n2@0-a" and segment.begin >= micros(10.5)]
    times = Counter[Category]()
    for each in own:
        times[each.category] += each.duration
    assert times[Category.UNKNOWN] == round(unknown * SECOND)
    assert times[Category.LAUNCH] == round(launch * SECOND)


def test_the_time_after_the_last_sign_of_an_agent_is_no_time_of_its_node() -> None:
    node = Node("n1")
    begin(node)
    node.train(30.0, 1, steps=26, last_step_at=30.0, **FIRST)
    for now in (33.0, 10_000.0):
        found = account(replace(journal(node, now=now, last_sign=32.0), abandoned=True))
        assert found.abandoned and not found.final
        assert seconds(found)["unknown"] == 2.0
        assert found.end == micros(32.0)


def test_a_run_that_goes_on_has_steps_at_risk() -> None:
    node = Node("n1")
    begin(node)
    node.train(30.0, 1, steps=26, last_step_at=30.0, saved_step=20, saved_at=25.0, **FIRST)
    found = account(journal(node, now=32.0))
    assert found.at_risk == 5
    assert not found.final
    assert seconds(found)["unknown"] == 2.0  # since the last totals


@pytest.mark.parametrize(
    ("count", "least", "most"),
    # From tables of the chi-square distribution: half of its quantiles at 2n and 2n + 2 degrees of freedom.
    [(0, 0.0, 2.996), (1, 0.0513, 4.744), (5, 1.970, 10.51), (100, 84.14, 118.1)],
)
def test_the_interval_of_a_rate(count: int, least: float, most: float) -> None:
    assert poisson_interval(count, 0.90) == pytest.approx((least, most), rel=2e-3)
