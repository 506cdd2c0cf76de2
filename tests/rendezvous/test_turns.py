"""The turns of nodes among many that wait."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import log2
from pathlib import Path

import pytest

from hpcelastic.protocol import leaders, polling
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.decide import checkpoint, drain, reopen
from hpcelastic.protocol.settings import NodeRange
from hpcelastic.protocol.spread import until_moment
from hpcelastic.protocol.state import NodeState, Participant, Phase, State, View
from hpcelastic.rendezvous.run import steer_run
from hpcelastic.storage.leases import OwnLease
from tests.rendezvous.nodes import (
    DEAD,
    HEARTBEAT,
    LAST_CALL,
    LEASE,
    NotifiedNode,
    World,
    deliver,
    make_world,
    named,
    names,
    readings,
    running,
)


def nodes_of(world: World, count: int, jobs: int = 1, **fields: object) -> list[NotifiedNode]:
    """Return the nodes of so many jobs of equal size. ``fields`` are those of their members."""
    places = [{"order": i // jobs, "job": f"{i % jobs}.0", "job_nodes": count // jobs} for i in range(count)]
    return [NotifiedNode(world, world.node(name, **places[i], **fields).member) for i, name in named(count)]


@pytest.mark.parametrize("jobs", [1, 10], ids=["one job", "a job for each"])
@pytest.mark.usefixtures("rare_readings")
def test_many_waiting_nodes_continue_a_round_of_which_all_members_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """No link tells them of the loss."""
    monkeypatch.setattr(polling, "_MAX_POLL_RATE", 0.1)
    world = make_world(tmp_path, 1, 2)
    nodes = nodes_of(world, 10, jobs)
    state = deliver(world, nodes, until=world.now + LAST_CALL + 10.0)
    left, began = [node for node in nodes if node.member.node not in state.ranks], world.now
    assert state.phase is Phase.RUNNING and len(left) >= 8
    for _ in range(100):
        state = deliver(world, left, until=world.now + 1.0)
        if state.round > 1:
            break
    assert set(names(state)) <= {node.member.name for node in left}
    assert world.now - began < 2 * LEASE + 2 * DEAD


@pytest.mark.parametrize("dead", ["abc", "abcde"])
@pytest.mark.parametrize("jobs", [1, 8], ids=["one job", "a job for each"])
@pytest.mark.usefixtures("rare_readings")
def test_many_nodes_form_their_first_round_without_the_first_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, dead: str
) -> None:
    monkeypatch.setattr(polling, "_MAX_POLL_RATE", 0.01)
    world, began = make_world(tmp_path, 2, 8), 1000.0
    nodes = nodes_of(world, 8, jobs)
    for node in nodes[: len(dead)]:
        node.turn()  # it publishes that it is ready, and dies
    state = deliver(world, nodes[len(dead) :], until=began + 20 * DEAD)
    assert (state.phase, names(state)) == (Phase.RUNNING, [*"abcdefgh"[len(dead) :]])
    assert world.now - began < LAST_CALL + 2 * DEAD + 10.0


def large_round_without_members(root: Path, count: int) -> tuple[World, State, Callable[[], None]]:
    """Return a run in whose round so many nodes were. All are dead, and their leases have not expired yet.

    Return also a function that renews all their leases.
    """
    world = make_world(root, 1, count)
    members = tuple(Participant(f"old{i}@0-aa", 2, f"old{i}.net", 4000) for i in range(count))
    state = State("run", world.settings, Phase.RUNNING, 1, members, reason="round 1 formed")
    assert world.backend.register("test").commit(1, encode(state))
    fields = {"node_state": NodeState.RUNNING, "round": 1, "job": "1.0", "job_nodes": count}
    leases = [
        (OwnLease(world.paths.leases, p.node), world.node(p.name, "0-aa", order=i, **fields).member)
        for i, p in enumerate(members)
    ]

    def renew() -> None:
        for lease, member in leases:
            lease.renew(member, LEASE)

    renew()
    return world, state, renew


def waiting_with_a_large_round(root: Path, phase: Phase, renewals: int) -> tuple[World, list[NotifiedNode]]:
    """Return four nodes that wait outside a large round, which runs or has ended. Its members die after so many
    renewals."""
    world, state, renew = large_round_without_members(root, 600)
    if phase is Phase.JOINING:
        ended = checkpoint(state).next
        assert ended is not None and world.backend.register("test").commit(2, encode(ended))
    nodes = nodes_of(world, 4, 4, round=1)
    for _ in range(renewals):
        renew()
        deliver(world, nodes, until=world.now + HEARTBEAT)
    return world, nodes


@pytest.mark.parametrize("waiting", [1, 4, 20])
@pytest.mark.parametrize("jobs", [True, False], ids=["a job for each", "one job"])
def test_a_few_nodes_soon_continue_a_run_that_was_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, jobs: bool
) -> None:
    """A node looks at its turn, and again when leases that have not changed since have expired."""
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 1.0)
    world, state, _ = large_round_without_members(tmp_path, 600)
    assert world.backend.register("test").commit(2, encode(reopen(state, world.settings)))
    nodes = nodes_of(world, waiting, waiting if jobs else 1, round=1)
    nodes[0].turn()
    began = world.now
    state = deliver(world, nodes, until=began + 1000.0)
    assert (state.phase, len(state.participants)) == (Phase.RUNNING, waiting)
    last_turn = leaders._TURN_INTERVAL * log2(600 / leaders.COUNT)
    assert world.now - began < last_turn + DEAD + LAST_CALL + LEASE


@pytest.mark.usefixtures("rare_readings")
def test_a_node_that_waits_with_dead_leaders_reads_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "_WATCHERS", 0)
    world, state, _ = large_round_without_members(tmp_path, 60)
    reopened = reopen(state, replace(world.settings, nodes=NodeRange(30, 60)))
    assert world.backend.register("test").commit(2, encode(reopened))
    nodes = nodes_of(world, 20, round=1)
    found = [readings(node, monkeypatch) for node in nodes]
    nodes[0].turn()
    state = deliver(world, nodes, until=world.now + 200.0)
    assert state.phase is Phase.JOINING
    assert all(2 <= len(times) <= 4 for times in found[6:]), [len(times) for times in found]


@pytest.mark.parametrize("waiting", [1, 4, 20])
def test_a_few_nodes_outside_a_large_round_watch_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 1.0)
    world, _, _ = large_round_without_members(tmp_path, 600)
    nodes = [
        NotifiedNode(world, world.node(name, round=1, order=600 + i, job="1.0", job_nodes=600 + waiting).member)
        for i, name in named(waiting)
    ]
    nodes[0].turn()
    began = world.now
    state = deliver(world, nodes, until=began + 1000.0)
    assert (state.phase, len(state.participants)) == (Phase.RUNNING, waiting)
    last_turn = leaders._TURN_INTERVAL * log2(600 / leaders.COUNT)
    assert world.now - began < 2 * LEASE + last_turn + 2 * DEAD + LAST_CALL


def test_a_few_nodes_outside_a_large_round_that_ends_watch_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members live when the round ends, and all of them die before the next one forms."""
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 1.0)
    world, nodes = waiting_with_a_large_round(tmp_path, Phase.JOINING, 15)
    began = world.now
    state = deliver(world, nodes, until=began + 1000.0)
    assert (state.phase, len(state.participants)) == (Phase.RUNNING, 4)
    assert world.now - began < 2 * LEASE + 2 * DEAD


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.JOINING])
def test_nodes_that_no_other_watches_for_continue_a_large_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """They read the leases one after the other, and see renewals from before the loss. Each looks again then."""
    monkeypatch.setattr(leaders, "_WATCHERS", 0)
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 604**2 / 300.0)  # each node reads after 300 s
    world, nodes = waiting_with_a_large_round(tmp_path, phase, 30)
    began = world.now
    state = deliver(world, nodes, until=began + 1000.0)
    assert (state.phase, len(state.participants)) == (Phase.RUNNING, 4)
    first = min(until_moment(node.member.node, began, 300.0) for node in nodes)
    assert world.now - began < first + 2 * DEAD + LAST_CALL + 10.0


@pytest.mark.usefixtures("large_rounds")
def test_members_of_a_round_that_read_rarely_do_not_look_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their links tell them of a loss."""
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 12**2 / 100.0)  # each node reads after 100 s
    world, nodes = running(tmp_path, 12)
    found = [readings(node, monkeypatch) for node in nodes]
    deliver(world, nodes, until=world.now + 500.0)
    others = [len(times) for times in found if len(times) < 100]
    assert len(others) == 9 and all(4 <= count <= 6 for count in others), others


@pytest.mark.parametrize("jobs", [1, 12], ids=["one job", "a job for each"])
@pytest.mark.usefixtures("rare_readings")
def test_nodes_stand_in_for_leaders_that_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    monkeypatch.setattr(polling, "_MAX_POLL_RATE", 0.1)
    world, nodes = running(tmp_path, 12)
    for index, node in enumerate(nodes):
        node.member = replace(node.member, order=index // jobs, job=f"{index % jobs}.0", job_nodes=12 // jobs)
    leading = {leader.name for leader in leaders.leaders(nodes[0].step().state, View({}), 12)}
    steer_run(world.backend, "user", partial(drain, nodes=leading))
    began, left = world.now, [node for node in nodes if node.member.name not in leading]
    for node in nodes:
        world.now += 0.05
        node.rendezvous.poll_again()
        node.turn()
        if node not in left:
            node.member = replace(node.member, node_state=NodeState.LEFT, round=1)
            node.turn()
    state = deliver(world, left, until=began + 300.0)
    assert (state.phase, state.round, {*names(state)}) == (Phase.RUNNING, 2, {node.member.name for node in left})
    assert world.now - began < 6.0


@pytest.mark.usefixtures("rare_readings")
def test_a_node_whose_turn_has_come_stops_to_read_when_it_sees_that_a_leader_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may wait long for more nodes, and each reading is a listing of all leases."""
    monkeypatch.setattr(leaders, "_WATCHERS", 0)
    world = make_world(tmp_path, 21, 30)
    nodes = nodes_of(world, 20)
    found = {node.member.name: readings(node, monkeypatch) for node in nodes}
    state = deliver(world, nodes, until=world.now + 200.0)
    assert state.phase is Phase.JOINING
    assert [name for name, times in found.items() if len(times) > 20] == ["a", "b", "c"], "the leaders"
    assert {len(found[name]) for name in [*found][6:]} <= {2, 3, 4}


@pytest.mark.usefixtures("rare_readings")
def test_a_node_whose_turn_has_not_come_when_a_round_forms_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = running(tmp_path, 12)
    found = [readings(node, monkeypatch) for node in nodes[6:8]]
    steer_run(world.backend, "user", checkpoint)
    nodes[0].rendezvous.poll_again()
    state = deliver(world, nodes, until=world.now + 10.0)
    assert (state.phase, state.round) == (Phase.RUNNING, 2)
    deliver(world, nodes, until=world.now + 60.0)
    assert found == [[], []]


@pytest.mark.usefixtures("rare_readings")
def test_the_turns_of_nodes_that_wait_begin_when_a_round_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have been ready for long, and must not all look at once."""
    monkeypatch.setattr(leaders, "_WATCHERS", 0)
    world = make_world(tmp_path, 1, 2)
    nodes = nodes_of(world, 20)
    state = deliver(world, nodes, until=world.now + LAST_CALL + 60.0)
    left = [node for node in nodes if node.member.node not in state.ranks]
    assert state.phase is Phase.RUNNING and len(left) == 18
    for node in left:
        node.set_state(NodeState.READY, state.round)  # as a standby of this round
    deliver(world, left, until=world.now + 60.0)
    found = [readings(node, monkeypatch) for node in left]
    steer_run(world.backend, "user", checkpoint)
    for node in left:
        node.rendezvous.poll_again()
        node.turn()
    for times in found:
        times.clear()
    deliver(world, left, until=world.now + LEASE / 4 + 1.0)
    assert 0 < sum(bool(times) for times in found) < 10
