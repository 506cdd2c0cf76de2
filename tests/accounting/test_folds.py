"""The account of old rounds is folded, and their events are left out: the account of the whole run stays the same."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcelastic.accounting import Account, Category, Fold, Journal, account, fold
from hpcelastic.accounting.folded import EndedAgent, needed
from hpcelastic.accounting.journal import Job, log_of
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.events import HangExamined, PeerSuspected
from hpcelastic.protocol.state import Cause, Phase

from .logs import Node, decided, journal, micros

CAUSES = st.sampled_from(["worker", "node", "hang", "spare", "back"])


class LongRun:
    """A run on three nodes whose rounds take 20 s each. A lost node is replaced by a new agent of the same name."""

    def __init__(self) -> None:
        self.nodes = [Node(f"n{i}", skew=100.0 * i) for i in range(3)]
        self.ended: list[Node] = []
        self.absent: set[int] = set()
        self.time, self.step, self.number = 2.0, 0, 0
        for node in self.nodes:
            node.start(1.0, launched=0.5, job="77.0", nodes=3, job_start=0.25)

    @property
    def all(self) -> list[Node]:
        return self.ended + self.nodes

    def round(self, cause: str, victim: int) -> None:
        self.number += 1
        begin, number = self.time, self.number
        members = [node for i, node in enumerate(self.nodes) if i not in self.absent]
        guilty = members[victim % len(members)]
        leader = next(node for node in members if node is not guilty) if len(members) > 1 else guilty
        decided(leader, begin, Phase.RUNNING, number, *(node.name for node in members))
        for node in self.nodes:
            node.state(begin + 0.01, Phase.RUNNING, number)
            if node in members:
                node.workers(begin + 0.1, number)
        self._end(cause, number, begin, guilty, leader, members)
        self.step += 6 if cause in ("worker", "node", "hang") else 10
        self.time = begin + 20.0 + victim

    def _end(self, cause: str, number: int, begin: float, guilty: Node, leader: Node, members: Sequence[Node]) -> None:
        end = begin + 15.0
        lost = guilty.id if cause == "node" and len(members) > 1 else ""
        if lost:
            leader.log(end - 0.5, PeerSuspected(peer=guilty.id, sign="refused"))
        elif cause in ("worker", "node"):
            guilty.fail(end - 0.2, number)
        elif cause == "hang":
            leader.log(
                end - 1.0,
                HangExamined(
                    round=number,
                    number=1,
                    verdict="behind",
                    ranks=(0,),
                    certain=True,
                    text="",
                    action="restart",
                    path="",
                ),
            )
        decided(leader, end, Phase.JOINING, number, lost=lost)
        known = {"worker": Cause.WORKER, "hang": Cause.WORKER, "node": Cause.NODE if lost else Cause.WORKER}.get(cause)
        for node in self.nodes:
            if lost and node is guilty:
                continue
            node.state(end + 0.01, Phase.JOINING, number, cause=known, lost=lost, reason=f"{guilty.name} failed")
            if node in members:
                times = {"entered_at": begin + 1, "restored_at": begin + 2, "first_step_at": begin + 3}
                node.train(
                    end + 0.5,
                    number,
                    steps=11,
                    before=self.step,
                    last_step_at=begin + 13,
                    samples=(1.0, 2.0, 7.0),  # type: ignore[arg-type]
                    saving=1.0,
                    saves=2,
                    **times,
                )
                node.park(end + 0.6, number)
        index = self.nodes.index(guilty)
        if lost:
            self.ended.append(guilty)
            self.nodes[index] = Node(guilty.name, guilty.skew, f"{number}-b")
            self.nodes[index].version = leader.version
            self.nodes[index].start(end + 2.0, launched=end + 1.0, job="77.0", nodes=3)
        if cause == "spare" and len(members) > 1:
            self.absent.add(index)
        if cause == "back":
            self.absent.clear()

    def finish(self) -> None:
        for node in self.nodes:
            node.state(self.time, Phase.SUCCEEDED, self.number)
            node.end(self.time + 0.5)


def whole(run: LongRun, now: float | None) -> Journal:
    return replace(journal(*run.all, now=now, wanted=3), jobs=(Job("77", micros(0.0), None),))


def without(run: LongRun, before: Fold, now: float | None, removed: Collection[str] = ()) -> Journal:
    """Return the journal with a fold, without the events that the fold makes unnecessary.

    The logs of agents in ``removed`` are not there.
    """
    ended = {agent.node for agent in before.ended} | set(removed)
    logs = tuple(
        log_of(
            node.id,
            [each for each in node.events if getattr(each.event, "round", before.kept) >= before.kept],
        )
        for node in run.all
        if node.id not in ended
    )
    return replace(whole(run, now), logs=logs, fold=before)


def names(run: LongRun) -> list[str]:
    """Return the agents of a run, all of which have logs."""
    return [node.id for node in run.all]


def figures(found: Account) -> tuple[object, ...]:
    return (
        found.begin,
        found.end,
        found.categories,
        found.faults,
        found.fault_sums,
        found.sums,
        found.goodput,
        found.ettr,
        found.mttf,
        found.predicted_ettr,
        found.at_risk,
        found.final,
    )


def run_of(causes: Sequence[tuple[str, int]], final: bool) -> tuple[LongRun, float | None]:
    run = LongRun()
    for cause, victim in causes:
        run.round(cause, victim)
    if final:
        run.finish()
    return run, None if final else run.time + 5.0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(CAUSES, st.integers(0, 2)), min_size=4, max_size=14), st.booleans(), st.data())
def test_a_fold_changes_no_figure(causes: list[tuple[str, int]], final: bool, data: st.DataObject) -> None:
    run, now = run_of(causes, final)
    expected = account(whole(run, now))
    logs = [node.id for node in run.all if data.draw(st.booleans(), label=f"log of {node.id}")]
    kept = data.draw(st.integers(1, len(causes) - 1), label="kept")
    first, removed = fold(whole(run, now), expected, kept, logs), removable(run, expected, kept, now) - set(logs)
    assert first is not None
    rest = account(without(run, first, now, removed))
    assert figures(rest) == figures(expected)
    later = data.draw(st.integers(kept, len(causes) - 1), label="later")
    second = fold(without(run, first, now, removed), rest, later, logs)
    if second is not None:
        removed = removable(run, expected, later, now) - set(logs)
        assert figures(account(without(run, second, now, removed))) == figures(expected)
        assert len(second.ended) <= len(logs) + len(run.nodes) + 1


def removable(run: LongRun, found: Account, kept: int, now: float | None) -> set[str]:
    """Return the agents that have ended before round ``kept``."""
    before = fold(whole(run, now), found, kept, names(run))
    assert before is not None
    return {agent.node for agent in before.ended}


def agent(node: str, end: int, started_by: str, machine: str, nodes: int | None = None) -> EndedAgent:
    return EndedAgent(node, 0, end, machine, started_by, nodes, ended_before=5)


def test_agents_without_a_log_matter_as_far_as_they_tell_how_long_a_job_had_its_nodes() -> None:
    first, second = agent("n1@0", 10, "7.0", "m1"), agent("n1@1", 20, "7.0", "m1")
    other, outside = agent("n2@0", 15, "7.0", "m2"), agent("n3@0", 30, "", "m3")
    old, last = agent("n4@0", 40, "6.0", "m4", nodes=9), agent("n5@0", 50, "6.1", "m5", nodes=8)
    ended = [second, first, other, outside, last, old]
    assert set(needed(ended, [each.node for each in ended], {"7.0"})) == {
        *(first, second, other, outside, old),
        replace(last, job_nodes=9),
    }
    assert set(needed(ended, [], {"7.0"})) == {second, other, replace(last, job_nodes=9)}
    assert set(needed(ended, ["n3@0"], set())) == {second, outside, replace(last, job_nodes=9)}


@pytest.mark.parametrize("kept_faults", [1, 3])
def test_faults_that_a_fold_does_not_describe_are_in_the_sums(
    kept_faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[fold.__module__], "KEPT_FAULTS", kept_faults)
    run, now = run_of([("worker", 0), ("node", 1), ("spare", 2), ("hang", 0)] * 5, final=True)
    expected = account(whole(run, now))
    assert expected.fault_sums.count == len(expected.faults) and expected.fault_sums.hang == 5
    first = fold(whole(run, now), expected, 8, names(run))
    assert first is not None and len(first.faults) == kept_faults
    rest = account(without(run, first, now))
    second = fold(without(run, first, now), rest, 15, names(run))
    assert second is not None and len(second.faults) == kept_faults
    found = account(without(run, second, now))
    assert found.faults == expected.faults[-len(found.faults) :] and len(found.faults) < len(expected.faults)
    assert (found.fault_sums, found.mttf, found.mttf_interval, found.predicted_ettr) == (
        expected.fault_sums,
        expected.mttf,
        expected.mttf_interval,
        expected.predicted_ettr,
    )


def test_a_fold_is_small_and_survives_json() -> None:
    run, now = run_of([("worker", 0), ("node", 1), ("spare", 2), ("hang", 0)] * 5, final=True)
    found = fold(whole(run, now), account(whole(run, now)), 18, names(run))
    assert found is not None and found.kept == 18 and {fault.round for fault in found.faults} < set(range(1, 18))
    read = decode(Fold, encode(found))
    assert read == found
    assert {Category(name) for name in encode(found)["categories"]} == set(Category)
    events = sum(len(node.events) for node in run.all)
    kept = without(run, found, now)
    assert sum(len(log.entries) for log in kept.logs) < events / 4


@pytest.mark.parametrize("kept", [0, 4, 9])
def test_nothing_is_folded_without_the_time_at_which_the_next_round_began(kept: int) -> None:
    run, now = run_of([("worker", 0)] * 4, final=True)
    assert fold(whole(run, now), account(whole(run, now)), kept, names(run)) is None
