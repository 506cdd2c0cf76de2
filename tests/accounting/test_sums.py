"""The categories sum exactly to the time of the nodes, however damaged the logs are."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcelastic.accounting import Journal, account
from hpcelastic.accounting.account import account as account_again
from hpcelastic.accounting.journal import Job
from hpcelastic.accounting.segments import lives_of
from hpcelastic.protocol.events import LoggedEvent, PeerSuspected, UnknownEvent
from hpcelastic.protocol.state import Cause, Phase

from .logs import Node, journal, micros
from .test_account import failing_run

MOVES = st.sampled_from(["drop", "repeat", "swap", "late", "early", "no boot time", "unknown kind"])
DAMAGE = st.lists(st.tuples(MOVES, st.integers(0, 10_000), st.floats(0.001, 5000.0)), max_size=30)


def damaged(node: Node, damage: list[tuple[str, int, float]], cut: float) -> Node:
    """Return a node with a part of the log, in which each of the moves has changed one event."""
    found = Node(node.name, incarnation=node.id.partition("@")[2])
    found.events = node.events[: round(len(node.events) * cut)]
    for move, where, seconds in damage:
        if not found.events:
            break
        i = where % len(found.events)
        found.events = changed(found.events, move, i, seconds)
    return found


def changed(events: list[LoggedEvent], move: str, i: int, seconds: float) -> list[LoggedEvent]:
    before, event, after = events[:i], events[i], events[i + 1 :]
    match move:
        case "drop":
            return before + after
        case "repeat":
            return [*before, event, event, *after]
        case "swap":
            return [*before, *after[:1], event, *after[1:]]
        case "late":
            return [*before, replace(event, time=event.time + seconds, up=(event.up or 0) + seconds), *after]
        case "early":
            return [*before, replace(event, time=event.time - seconds, up=(event.up or 0) - seconds), *after]
        case "no boot time":
            return [*before, replace(event, up=None), *after]
    return [*before, replace(event, event=UnknownEvent(event.event.kind, {})), *after]


def lost_node() -> tuple[Node, Node]:
    """Return two nodes, of which the second dies in round 2."""
    first, second = failing_run()
    second.events = [event for event in second.events if event.up is not None and event.up < 5030.0]
    first.log(31.0, PeerSuspected(peer=second.id, sign="refused"))
    first.state(32.0, Phase.JOINING, 2, cause=Cause.NODE, lost=second.id)
    return first, second


def slots(found: Journal) -> int:
    """Return the node time of a run: that of its agents, and that of nodes for which a job waits.

    It is summed up instant by instant, unlike in the code.
    """
    lives = lives_of(found)
    total = sum(life.end - life.begin for life in lives)
    final = account_again(found).final
    for job in found.jobs:
        ours = [life for life in lives if life.job == job.id]
        nodes = job.nodes or max([life.job_nodes or 0 for life in ours], default=0) or found.wanted
        end = found.end if not final and not ours else max([life.end for life in ours], default=found.end)
        times = sorted({job.submitted, end, *(t for life in ours for t in (life.begin, life.end))})
        for i, begin in enumerate(times[:-1]):
            if begin >= job.submitted and begin < end:
                present = sum(life.begin <= begin < life.end for life in ours)
                total += (min(times[i + 1], end) - begin) * max(0, nodes - present)
    return total


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(),
    st.lists(DAMAGE, min_size=2, max_size=2),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    st.sampled_from([None, 10.0, 60.0]),
    st.lists(st.tuples(st.sampled_from(["77", "78"]), st.floats(-100.0, 50.0)), max_size=2),
)
def test_the_categories_sum_to_the_time_of_the_nodes(
    dies: bool,
    damage: list[list[tuple[str, int, float]]],
    cuts: list[float],
    now: float | None,
    jobs: list[tuple[str, float]],
) -> None:
    nodes = [damaged(*each) for each in zip(lost_node() if dies else failing_run(), damage, cuts, strict=True)]
    known = journal(*nodes, now=now, wanted=2)
    known = replace(known, jobs=tuple(Job(job, micros(time), None) for job, time in dict(jobs).items()))
    found = account(known)
    assert found.total == sum(found.categories.values()) == slots(known)
    assert all(segment.duration > 0 for segment in found.segments)
    for life in lives_of(known):
        ours = [segment for segment in found.segments if segment.node == life.log.node]
        ends = [life.begin, *(segment.end for segment in ours)]
        assert [segment.begin for segment in ours] == ends[:-1] and ends[-1] == life.end
