import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import ConfigError, StoreError, VisibilityError
from hpcelastic.protocol.decide import Decision, drain, request_stacks
from hpcelastic.protocol.findings import Hang
from hpcelastic.protocol.hangs import examine
from hpcelastic.protocol.lease_duration import HeldLease, LeaseDuration
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, NodeState, Phase, Seen, State
from hpcelastic.rendezvous.run import close_run, decode_state, open_run, read_state, reopen_run, steer_run
from hpcelastic.storage import files, leases
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register
from tests.rendezvous.nodes import (
    DEAD,
    HEARTBEAT,
    LAST_CALL,
    LEASE,
    MARGIN,
    Node,
    World,
    make_world,
    names,
    turns,
    wait,
)
from tests.storage.forking import deaths, die_in, in_processes, steps_of

JOB = {"job": "7.0", "job_nodes": 2}


def history(world: World) -> list[State]:
    register = Register(world.paths.register, "")
    return [decode_state(register, register.version(number)) for number in register.numbers()]


def rounds(world: World) -> list[int]:
    """Return the rounds in which the run was running, from the history."""
    return [state.round for state in history(world) if state.phase is Phase.RUNNING]


def running_pair(root: Path, minimum: int = 1, maximum: int = 2) -> tuple[World, Node, Node]:
    world = make_world(root, minimum, maximum)
    a, b = world.node("a", order=0, **JOB), world.node("b", order=1, **JOB)
    state = turns(a, b)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 1, ["a", "b"])
    return world, a, b


# Forming a round


def test_a_barrier_waits_for_enough_nodes(tmp_path: Path) -> None:
    world = make_world(tmp_path, 3, 3)
    a, b = world.node("a"), world.node("b")
    assert turns(a, b).phase is Phase.JOINING
    assert a.step().reason == "waiting for nodes: 2 of at least 3 are ready"
    c = world.node("c")
    assert c.step().reason == "waiting for a heartbeat from a, b"
    a.step(), b.step()
    assert c.step().state.phase is Phase.RUNNING, "the last node completes the round itself"
    assert a.step().state == b.step().state
    assert names(a.step().state) == ["a", "b", "c"]
    assert len(history(world)) == 2, "one version forms a round, however many join"


def test_a_lease_that_a_listing_misses_does_not_delay_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was renamed at the moment of the listing."""
    world, a, b = running_pair(tmp_path)
    shown, missed = files.names, list[str]()

    def listing(directory: Path) -> list[str]:
        found = shown(directory)
        if missed and directory == world.paths.leases:
            name = missed.pop()
            return [text for text in found if not text.startswith(name)]
        return found

    monkeypatch.setattr(files, "names", listing)
    world.now += HEARTBEAT
    b.step()
    missed[:] = ["b@", "b@"]
    a.step()
    assert missed == ["b@"], "while a round runs, it does not matter"
    missed.clear()
    b.fail(1)
    b.step()
    a.set_state(NodeState.READY, 1)
    assert a.step().state.phase is Phase.JOINING
    b.set_state(NodeState.READY, 1)
    b.rendezvous.renew(b.member)
    missed.append("b@")
    state = a.step().state
    assert (state.phase, state.round, missed) == (Phase.RUNNING, 2, [])


def test_a_round_that_may_grow_waits_for_the_last_call(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 3)
    a, b = world.node("a"), world.node("b")
    assert turns(a, b).phase is Phase.JOINING
    wait(world, LAST_CALL - 0.1, a, b)
    observation = a.step()
    assert observation.state.phase is Phase.JOINING
    assert "last call: 2 nodes ready" in observation.reason
    b.step()
    world.now += 0.2
    assert names(a.step().state) == ["a", "b"]


def test_the_last_call_starts_anew_when_the_quorum_is_lost(tmp_path: Path) -> None:
    world = make_world(tmp_path, 2, 3)
    a, b = world.node("a"), world.node("b")
    turns(a, b)
    wait(world, LAST_CALL - 1, a, b)
    b.set_state(NodeState.LEFT, 0)
    b.step()
    assert "1 of at least 2" in a.step().reason
    c = world.node("c")
    turns(a, c)
    wait(world, LAST_CALL - 1, a, c)
    assert a.step().state.phase is Phase.JOINING
    c.step()
    world.now += 1.001
    assert names(a.step().state) == ["a", "c"]


def test_a_round_forms_at_once_when_no_other_node_is_expected(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 4)
    a = world.node("a", order=0, **JOB)
    assert a.step().state.phase is Phase.JOINING
    b = world.node("b", order=1, **JOB)
    assert b.step().reason == "waiting for a heartbeat from a"
    assert a.step().state.phase is Phase.RUNNING, "a node whose start was seen is alive"
    assert world.now == 1000.0


def test_ranks_follow_the_order_in_the_job(tmp_path: Path) -> None:
    world = make_world(tmp_path, 3, 3)
    late = [world.node(name, order=order) for name, order in (("x", 2), ("y", 0), ("z", 1))]
    assert names(turns(*late)) == ["y", "z", "x"]


def test_nodes_beyond_the_range_are_standbys(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1)
    a, b = world.node("a"), world.node("b")
    a.set_state(NodeState.READY, -1)  # so that both exist when the round forms
    a.step()
    state = b.step().state
    assert names(state) == ["b"]
    turns(a, b)
    assert read_state(world.backend).round == 1


def test_a_node_uses_its_own_state_instead_of_its_stale_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, 1, 1)
    a = world.node("a")
    monkeypatch.setattr(leases, "read_lease", lambda path: None)  # a stale listing or page
    assert names(turns(a)) == ["a"]
    world.now += 10 * DEAD
    assert a.step().reason == "round 1 runs on 1 node"


def test_a_turn_returns_the_start_of_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, a, _ = running_pair(tmp_path)
    replace_file = os.replace

    def slow(*args: str) -> None:
        world.now += 7.0
        replace_file(*args)

    monkeypatch.setattr(os, "replace", slow)
    world.now += HEARTBEAT
    before = world.now
    observation = a.step()
    assert world.now == before + 7.0
    assert observation.lease.start == before, "the lease begins before the renewal"
    assert observation.version == len(history(world))


def test_an_expired_lease_is_settled_only_when_all_must_have_seen_its_renewal(tmp_path: Path) -> None:
    world, a, _ = running_pair(tmp_path)
    rendezvous = world.settings.rendezvous
    assert a.step().settled, "no lease has expired before the first renewal"
    world.now += rendezvous.lease
    assert not a.step().settled
    world.now += rendezvous.margin - 0.1
    assert not a.step().settled
    world.now += rendezvous.lease / 4
    assert a.step().settled


def test_the_lease_expires_during_a_long_renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, a, _ = running_pair(tmp_path)
    replace_file = os.replace

    def slow(*args: str) -> None:
        world.now += world.settings.rendezvous.lease
        replace_file(*args)

    world.now += HEARTBEAT
    monkeypatch.setattr(os, "replace", slow)
    assert not a.step().settled


def test_nodes_renew_their_leases_and_poll_one_after_the_other(tmp_path: Path) -> None:
    _, a, b = running_pair(tmp_path)
    assert len({node.rendezvous._schedule._part for node in (a, b)}) == 2
    first, second = (node.rendezvous.lease_duration.interval for node in (a, b))
    assert first != second
    assert 0.8 * HEARTBEAT <= min(first, second) <= max(first, second) <= HEARTBEAT


def test_a_node_that_was_declared_dead_although_it_is_alive_takes_a_longer_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, a, b = running_pair(tmp_path)
    duration = b.rendezvous._lease.duration = LeaseDuration(RendezvousSettings())
    monkeypatch.setattr(duration, "record", lambda late: None)  # its own renewals are never late
    b.step()
    wait(world, 2 * DEAD, a)
    assert a.step().state.lost == b.member.node
    assert duration.seconds == 10.0
    for _ in range(2):
        b.step()
        assert duration.seconds == 30.0, "once for each loss"
    for _ in range(4):
        world.now += 0.5
        for node in (b, a):
            node.turn()
    assert len(a.step().state.participants) == 2, "it is in the next round"
    wait(world, 4 * DEAD, a)
    assert a.step().state.just_lost == b.member.node
    for _ in range(2):
        b.step()
        assert duration.seconds == 60.0, "also after the second one in a row"


# Renewals and reads of leases


def heartbeat(world: World, node: Node) -> int:
    return read_leases(world.paths.leases)[node.member.node].heartbeat


def renewals(world: World, node: Node, times: int, seconds: float) -> list[bool]:
    """Return in which of ``times`` turns, with that many seconds between them, the lease was renewed."""
    renewed = []
    for _ in range(times):
        world.now += seconds
        before = heartbeat(world, node)
        node.step()
        renewed.append(heartbeat(world, node) > before)
    return renewed


def test_while_a_round_forms_every_turn_renews_the_lease(tmp_path: Path) -> None:
    world = make_world(tmp_path, 2, 2)
    a = world.node("a")
    a.step()
    assert renewals(world, a, 5, 0.1) == [True] * 5
    assert a.step().lease.start == world.now


def test_while_a_round_runs_a_lease_is_renewed_three_times_in_its_duration(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    a.step()
    began = world.now
    assert renewals(world, a, 6, HEARTBEAT / 2) == [False, True] * 3
    world.now += HEARTBEAT / 2
    assert a.step().lease.start == began + 3 * HEARTBEAT, "the lease begins with its renewal, not with the turn"


def test_the_only_node_of_a_run_has_a_long_lease(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 2)
    times = RendezvousSettings(last_call=LAST_CALL, margin=MARGIN)
    world.settings = replace(world.settings, rendezvous=times)
    a = world.node("a", job="7.0", job_nodes=1)
    durations = []
    for _ in range(40):
        a.turn()
        durations.append(a.rendezvous.lease_duration.seconds)
        world.now += a.rendezvous.lease_duration.interval
    assert {*durations} == {10.0}
    b = world.node("b", order=1, job="8.0", job_nodes=1)
    b.turn()
    assert names(turns(a, b)) == ["a", "b"]
    assert a.rendezvous.lease_duration.seconds == times.shortest_lease


def test_changes_are_published_at_once(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    a.step()
    a.set_state(NodeState.SUCCEEDED, 1)
    assert renewals(world, a, 2, 0.1) == [True, False]
    assert read_leases(world.paths.leases)[a.member.node].member.node_state is NodeState.SUCCEEDED


def test_after_the_end_of_a_round_every_turn_renews_the_lease(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    a.step()
    b.set_state(NodeState.LEFT, 1)
    b.step()
    assert renewals(world, a, 3, 0.1) == [False, True, True], "in the first turn it has only read the version"


def test_a_failed_renewal_is_repeated_in_the_next_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, a, _b = running_pair(tmp_path)
    a.step()
    world.now += HEARTBEAT

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(os, "replace", fail)
        a.step()
    assert renewals(world, a, 2, 0.1) == [True, False]


def looks(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that grows with every reading of all leases by ``node``."""
    observer, made = node.rendezvous._leases.observer, []
    observe = observer.observe

    def counted(expected: Iterable[str], *, complete: bool) -> dict[str, Seen]:
        made.append(None)
        return observe(expected, complete=complete)

    monkeypatch.setattr(observer, "observe", counted)
    return made


def test_while_a_round_forms_leases_are_read_in_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, 2, 2)
    a = world.node("a")
    made = looks(a, monkeypatch)
    for count in range(1, 5):
        a.step()
        assert len(made) == count


def test_while_a_round_runs_leases_are_read_twice_as_often_as_they_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, a, _b = running_pair(tmp_path)
    a.step()
    made = looks(a, monkeypatch)
    counts = []
    for _ in range(6):
        world.now += HEARTBEAT / 4
        a.step()
        counts.append(len(made))
    assert counts == [0, 1, 1, 2, 2, 3]


def test_a_node_with_a_new_content_or_notification_reads_the_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _world, a, b = running_pair(tmp_path)
    a.step()
    made = looks(a, monkeypatch)
    a.step()
    assert not made
    a.set_state(NodeState.SUCCEEDED, 1)
    a.step(), a.step()
    assert len(made) == 1
    b.set_state(NodeState.LEFT, 1)
    b.step()
    a.step()
    assert len(made) == 2


# Lost, leaving and new nodes


def test_a_node_whose_lease_expires_is_lost(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    world.now += HEARTBEAT
    a.step()
    world.now += DEAD - HEARTBEAT
    assert a.step().state.phase is Phase.RUNNING
    world.now += HEARTBEAT
    state = a.turn()
    assert (state.phase, state.cause, state.reason) == (Phase.JOINING, Cause.NODE, "b was lost")
    state = turns(a)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a"])
    assert state.restarts == 0 and state.spent == {"node": 1}


def test_the_loss_of_a_node_has_its_evidence(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    world.now += HEARTBEAT
    a.step()
    world.now += DEAD
    a.turn()
    turns(a)
    (lost,) = (each for each in a.commits if each.evidence)
    assert (lost.state.reason, lost.evidence) == ("b was lost", "lease")
    assert lost.silence == pytest.approx(DEAD), "a has seen the last renewal at its own last turn"
    assert all(each.silence is None for each in a.commits if each is not lost)


def test_a_node_is_not_declared_lost_before_the_end_of_the_margin(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    a.step()
    world.now += LEASE + MARGIN / 2
    assert a.turn().phase is Phase.RUNNING


def test_a_lost_node_that_is_a_member_again_is_not_lost_because_a_listing_misses_it(tmp_path: Path) -> None:
    world = make_world(tmp_path, 2, 3)
    a, b, c = (world.node(name) for name in "abc")
    turns(a, b, c)
    wait(world, 2 * DEAD, a, c)
    assert names(turns(a, c)) == ["a", "c"]
    b.set_state(NodeState.READY, 1)
    c.turn(), wait(world, MARGIN + 0.1, b, c)
    b.turn(), c.turn()
    wait(world, DEAD, b, c)
    assert names(turns(b, c)) == ["b", "c"], "without a"
    (lease,) = world.paths.leases.glob("b@*")
    lease.rename(hidden := tmp_path / lease.name)
    state = a.step().state
    assert (state.phase, state.lost) == (Phase.RUNNING, "")
    hidden.rename(lease)
    assert a.step().state.lost == ""


def test_a_lost_node_that_is_in_the_next_round_is_not_lost_because_a_listing_misses_it(tmp_path: Path) -> None:
    world = make_world(tmp_path, 2, 3)
    a, b, c = (world.node(name) for name in "abc")
    turns(a, b, c)
    wait(world, 2 * DEAD, a, c)
    assert a.step().state.lost == b.member.node
    b.set_state(NodeState.READY, 1)
    c.turn(), wait(world, 2 * DEAD, b, c)
    state = turns(b, c)
    assert (state.phase, names(state), state.lost) == (Phase.RUNNING, ["b", "c"], b.member.node)
    (lease,) = world.paths.leases.glob("b@*")
    lease.rename(tmp_path / lease.name)
    assert a.step().state.phase is Phase.RUNNING


def test_any_node_may_be_lost(tmp_path: Path) -> None:
    for index in range(3):
        world = make_world(tmp_path / str(index), 2, 3)
        nodes = [world.node(name, order=i) for i, name in enumerate("abc")]
        assert names(turns(*nodes)) == ["a", "b", "c"]
        survivors = [node for node in nodes if node is not nodes[index]]
        for _ in range(8):
            turns(*survivors, times=1)
            world.now += LEASE / 2
        wait(world, LAST_CALL - LEASE / 2, *survivors)
        state = turns(*survivors)
        assert (state.phase, state.round) == (Phase.RUNNING, 2)
        assert names(state) == [node.member.name for node in survivors]


def test_heartbeats_keep_a_peer_alive_in_a_long_run(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    for _ in range(20):
        world.now += LEASE
        turns(b, a, times=1)
    assert rounds(world) == [1]


def test_the_run_does_not_wait_for_a_node_that_left(tmp_path: Path) -> None:
    _world, a, b = running_pair(tmp_path)
    b.set_state(NodeState.LEFT, 1)
    state = b.step().state
    assert (state.phase, state.cause, state.reason) == (Phase.JOINING, Cause.LEAVE, "b left")
    state = turns(a)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a"])
    assert not state.phase.final, "leaving is not closing"


def test_a_newcomer_joins_in_a_new_round(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 2)
    a = world.node("a", order=5, job="7.0", job_nodes=1)
    assert names(turns(a)) == ["a"]
    b = world.node("b", order=0, job="8.0", job_nodes=1, round=1)
    state = b.turn()
    assert (state.phase, state.cause, state.reason) == (Phase.JOINING, Cause.JOIN, "b joins")
    b.turn()
    state = turns(a, b)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a", "b"]), "a survivor keeps its rank"


def test_an_observation_counts_the_nodes_that_wait_for_the_next_round(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1)
    member, *others = (world.node(name) for name in "abc")
    turns(member)
    turns(*others)
    wait(world, HEARTBEAT, *others, member)
    assert (member.step().state.phase, member.step().waiting) == (Phase.RUNNING, 2)
    others[0].set_state(NodeState.LEFT, 1)
    others[0].step()
    member.fail(1)
    observation = member.step()
    assert (observation.state.phase, observation.waiting) == (Phase.JOINING, 1)


def test_no_round_forms_while_a_member_may_have_workers(tmp_path: Path) -> None:
    _world, a, b = running_pair(tmp_path)
    a.fail(1)
    state = turns(a, times=1)
    a.set_state(NodeState.READY, 1)
    for _ in range(5):
        observation = a.step()
        assert observation.state.phase is Phase.JOINING
        assert observation.reason == "waiting for b to stop the workers of round 1"
    turns(b, times=1)
    state = turns(a, b)
    assert (state.phase, state.round, state.spent) == (Phase.RUNNING, 2, {"worker": 1})


def test_a_node_knows_whether_other_nodes_may_have_workers(tmp_path: Path) -> None:
    _world, a, b = running_pair(tmp_path)
    assert not a.step().last, "a round runs"
    a.fail(1)
    assert not a.step().last
    b.set_state(NodeState.READY, 1)
    b.step()
    assert a.step().last
    a.set_state(NodeState.READY, 1)
    assert not a.step().last, "the next round runs"


def test_a_requeued_node_does_not_wait_for_a_time_out(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    again = world.node("b", "1-cd", order=1, round=-1, dead=(b.member.node,), **JOB)
    state = turns(again, a, again)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a", "b"])
    assert state.participants[1].node == "b@1-cd"
    assert world.now == 1000.0


def test_the_budget_ends_the_run(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1, restarts=1)
    a = world.node("a", job="7.0", job_nodes=1)
    for round in (1, 2):
        assert turns(a).round == round
        a.fail(round, f"ValueError: {round}")
    state = turns(a)
    assert state.phase is Phase.FAILED
    assert state.reason == "rank 0 failed on a: ValueError: 2 (restarts.max is 1, all spent)"


def test_a_success_of_all_is_final_without_the_nodes(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    b.set_state(NodeState.SUCCEEDED, 1)
    b.step()
    world.now += 10 * DEAD
    a.set_state(NodeState.SUCCEEDED, 1)
    assert a.step().state.phase is Phase.SUCCEEDED
    world.now += 10 * DEAD
    assert a.step().state.phase is Phase.SUCCEEDED


# Races


def test_one_of_two_commits_after_the_same_version_wins_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path, 2, 2)
    a, b = world.node("a"), world.node("b")
    b.member = replace(b.member, round=-1)
    a.step(), b.step(), a.step()  # the lease of b is there, not ready yet
    b.member = replace(b.member, round=0)
    b.rendezvous._lease.renew(b.member)
    commit, raced = Register.commit, []

    def overtaken(self: Register, after: int, value: object) -> bool:
        monkeypatch.setattr(Register, "commit", commit)
        monkeypatch.setattr(Register, "lock", no_lock)
        raced.append(b.step().state)
        raced.append(commit(self, after, value))
        return raced[-1]

    monkeypatch.setattr(Register, "commit", overtaken)
    assert a.step().state.phase is Phase.JOINING, "the loser reads more in its next turn"
    state = a.step().state
    assert raced == [state, False]
    assert (state.phase, state.round) == (Phase.RUNNING, 1)
    assert rounds(world) == [1]


def test_a_turn_ends_at_a_version_that_is_not_listed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory's listing may be older than the names that its server refuses to create again."""
    world, a, b = running_pair(tmp_path)
    before = a.step()
    b.set_state(NodeState.LEFT, 1)
    b.step()
    after = len(history(world))
    assert after > before.version
    last, tries = Register._last_number, []
    commit = Register.commit

    def counted(self: Register, number: int, value: object) -> bool:
        tries.append(number)
        return commit(self, number, value)

    a.set_state(NodeState.LEFT, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Register, "_last_number", lambda self: min(last(self), before.version))
        patch.setattr(Register, "commit", counted)
        observation = a.step()
    assert (observation.version, observation.state, tries) == (before.version, before.state, [before.version])
    assert a.step().version == after == len(history(world))


@contextlib.contextmanager
def no_lock(register: Register) -> Iterator[None]:
    yield


@pytest.mark.parametrize("locked", [True, False], ids=["lock", "no lock"])
def test_concurrent_turns_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool) -> None:
    if not locked:
        monkeypatch.setattr(Register, "lock", no_lock)
    world = make_world(tmp_path, 6, 6)
    nodes = [world.node(f"n{i}", order=i) for i in range(6)]
    gate = threading.Barrier(len(nodes))

    def take_part(node: Node) -> None:
        gate.wait()
        for _ in range(10_000):
            if node.member.node_state is NodeState.RUNNING:
                return
            node.turn()

    threads = [threading.Thread(target=take_part, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {node.member.node_state for node in nodes} == {NodeState.RUNNING}
    assert rounds(world) == [1]
    assert [state.round for state in history(world)] == [0, 1]


def test_a_new_version_before_the_commit_causes_a_new_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision on an old version is not committed after a newer one."""
    world, a, b = running_pair(tmp_path)
    b.set_state(NodeState.LEFT, 1)
    b.rendezvous._lease.renew(b.member)
    world.now += HEARTBEAT
    lock = Register.lock

    @contextlib.contextmanager
    def closing(self: Register) -> Iterator[None]:
        monkeypatch.setattr(Register, "lock", lock)
        close_run(world.backend, "user", "cancelled")
        yield

    monkeypatch.setattr(Register, "lock", closing)
    state = a.step().state
    assert (state.phase, state.reason) == (Phase.CLOSED, "cancelled")
    assert [s.phase for s in history(world)][-2:] == [Phase.RUNNING, Phase.CLOSED]


# Sudden death


def test_after_a_death_at_any_point_of_a_turn_the_others_continue(tmp_path: Path) -> None:
    def before_the_last_joins(root: Path) -> tuple[World, Node, Node]:
        world = make_world(root, 2, 2)
        a, b = world.node("a"), world.node("b", round=-1)
        a.step(), b.step(), a.step()
        return world, a, b

    _, _, b = before_the_last_joins(tmp_path / "whole")
    b.set_state(NodeState.READY, 0)
    steps = steps_of(b.step)
    assert steps.count("replace") == 1 and steps.count("link") == 1
    for index, where in deaths(steps):
        world, a, b = before_the_last_joins(tmp_path / f"{index}-{where}")
        b.set_state(NodeState.READY, 0)
        die_in(b.step, index, where)
        point = f"killed {where} {steps[index]}, step {index} of {steps}"
        assert read_state(world.backend).round in (0, 1), point
        turns(a, times=2)
        world.now += DEAD
        state = turns(a)
        assert (state.phase, state.round <= 1) == (Phase.JOINING, True), point
        wait(world, MARGIN, a)
        c = world.node("c")
        state = turns(a, c)
        assert (state.phase, names(state)) == (Phase.RUNNING, ["a", "c"]), point


# Errors


@pytest.mark.parametrize("call", ["open", "replace", "link", "listdir"])
def test_a_failed_turn_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world = make_world(tmp_path, 1, 1)
    a = world.node("a")

    def fail(*args: object, **more: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreError, match="Input/output error"):
            a.step()
    assert a.step().state.phase is Phase.RUNNING
    assert rounds(world) == [1]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"run_id": "run", "settings": {}, "phase": "dancing"},
        {"run_id": "run", "settings": {"nodes": {"min": 0}}},
    ],
    ids=["null", "list", "empty", "unknown phase", "impossible settings"],
)
def test_an_invalid_state_is_reported(tmp_path: Path, value: object) -> None:
    world = make_world(tmp_path, 1, 1)
    a = world.node("a")
    Register(world.paths.register, "alien").commit(1, value)
    for read in (a.step, lambda: read_state(world.backend), lambda: close_run(world.backend, "me", "x")):
        with pytest.raises(StoreError, match=r"versions: version 2 cannot be decoded .*another version of hpcelastic"):
            read()


# Opening, closing, reopening


def test_the_first_to_open_a_run_creates_it(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 2)
    assert read_state(world.backend) == State("run", world.settings)
    assert open_run(world.backend, "run", world.settings, "b") == State("run", world.settings)
    assert len(history(world)) == 1


@pytest.mark.parametrize("missing", [5, 1000])
def test_a_node_that_does_not_see_the_new_run_yet_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Another node has created the run, and this client remembers that its first version was absent."""
    world = make_world(tmp_path, 1, 2)
    read_json, calls = files.read_json, itertools.count()
    monkeypatch.setattr(files, "read_json", lambda path: None if next(calls) < missing else read_json(path))
    monkeypatch.setattr(FileBackend, "register", lambda self, writer: Register(world.paths.register, writer, None, 0.0))
    if missing == 5:
        assert open_run(world.backend, "run", world.settings, "b") == State("run", world.settings)
    else:
        with pytest.raises(VisibilityError, match="is listed, but this node can't open it"):
            open_run(world.backend, "run", world.settings, "b")


def test_a_node_that_loses_the_creation_to_a_version_it_does_not_see_yet_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node creates the run while this one does, and this client remembers that its first version was absent."""
    world = make_world(tmp_path, 1, 2)
    read_json, list_names, reads, lists = files.read_json, files.names, itertools.count(), itertools.count()
    # Nothing is listed by the reading before the commit, and by the first of the two listings in the commit.
    monkeypatch.setattr(files, "names", lambda directory: [] if next(lists) < 2 else list_names(directory))
    monkeypatch.setattr(files, "read_json", lambda path: None if next(reads) < 3 else read_json(path))
    monkeypatch.setattr(FileBackend, "register", lambda self, writer: Register(world.paths.register, writer, 9, 0.0))
    assert open_run(world.backend, "run", world.settings, "b") == State("run", world.settings)


def test_one_of_many_that_open_a_run_creates_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.register.mkdir(parents=True)

    def open_with(index: int) -> str:
        try:
            open_run(FileBackend(paths), "run", Settings(NodeRange(1, 1 + index)), str(index))
        except ConfigError:
            return "refused"
        return "opened"

    opened = in_processes(6, open_with)
    assert sorted(opened) == ["opened"] + ["refused"] * 5
    assert read_state(FileBackend(paths)).settings.nodes.max == 1 + opened.index("opened")
    assert Register(paths.register, "").numbers() == [1]


def test_other_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 3)
    times = RendezvousSettings(last_call=LAST_CALL, lease=20.0, margin=2.0)
    with pytest.raises(ConfigError) as caught:
        open_run(world.backend, "run", Settings(NodeRange(1, 2), times, RestartSettings(3)), "b")
    assert str(caught.value) == (
        f"{tmp_path}: the run was created with nodes.max = 3 (here 2), rendezvous.lease = 12.0 (here 20.0); every "
        "agent of a run must use the same settings: repeat those, or use another run id"
    )


def test_another_run_in_the_directory_is_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1)
    with pytest.raises(ConfigError, match="holds the run 'run', not 'other'; use another directory"):
        open_run(world.backend, "other", world.settings, "b")


def test_an_empty_directory_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        read_state(FileBackend(RunPaths(tmp_path)))
    with pytest.raises(StoreError, match="holds no run"):
        read_state(FileBackend(RunPaths(tmp_path / "missing")))
    with pytest.raises(StoreError, match="holds no run"):
        close_run(FileBackend(RunPaths(tmp_path)), "user", "cancelled")
    with pytest.raises(StoreError, match="holds no run"):
        reopen_run(FileBackend(RunPaths(tmp_path)), "user", Settings())
    assert os.listdir(tmp_path) == []


def test_a_closed_run_stays_closed(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    closed = close_run(world.backend, "user", "cancelled by the user")
    assert (closed.phase, closed.reason, closed.round) == (Phase.CLOSED, "cancelled by the user", 1)
    assert close_run(world.backend, "user", "again") == closed
    assert a.step().state == b.step().state == closed
    assert world.node("c").step().state == closed
    assert len([s for s in history(world) if s.phase is Phase.CLOSED]) == 1


def test_a_request_that_an_outdated_read_makes_seem_done_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's caches do not show the drain that this request is to undo."""
    world = make_world(tmp_path, 1, 2)
    before = Register(world.paths.register, "").read()
    undo = partial(drain, nodes=["n1"], undo=True)
    read, outdated = Register.read, iter([before])
    steer_run(world.backend, "user", partial(drain, nodes=["n1"]))
    monkeypatch.setattr(Register, "read", lambda self: next(outdated, None) or read(self))
    assert steer_run(world.backend, "user", undo, confirm=True).drained == ()
    assert [state.drained for state in history(world)] == [(), ("n1",), ()]
    assert steer_run(world.backend, "user", undo, confirm=True) == read_state(world.backend)
    assert [state.drained for state in history(world)] == [(), ("n1",), (), ()], "confirmed by a version"


def test_closing_wins_over_concurrent_changes(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1)
    register, read = Register(world.paths.register, "mover"), Register.read
    moves = iter(range(3))

    def moving(self: Register) -> object:
        version = read(self)
        if self is not register and next(moves, None) is not None:
            register.update(lambda value: value)
        return version

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Register, "read", moving)
        assert close_run(world.backend, "user", "cancelled").phase is Phase.CLOSED
    assert read_state(world.backend).phase is Phase.CLOSED
    assert len(history(world)) == 5


def test_a_reopened_run_continues_with_other_settings(tmp_path: Path) -> None:
    world, a, _b = running_pair(tmp_path)
    a.fail(1)
    a.turn()
    close_run(world.backend, "user", "cancelled")
    wider = replace(world.settings, nodes=NodeRange(1, 5))
    state = reopen_run(world.backend, "user", wider)
    assert (state.phase, state.round, state.settings, state.restarts) == (Phase.JOINING, 1, wider, 0)
    assert open_run(world.backend, "run", wider, "a") == state
    with pytest.raises(ConfigError, match=r"nodes\.max = 5 \(here 2\)"):
        open_run(world.backend, "run", world.settings, "a")


def test_a_reopened_run_waits_for_members_that_may_live(tmp_path: Path) -> None:
    world, _a, _b = running_pair(tmp_path)
    close_run(world.backend, "user", "cancelled")
    reopen_run(world.backend, "user", world.settings)
    c = world.node("c", job="9.0", job_nodes=1)
    turns(c)
    assert c.step().reason == "waiting for a, b to stop the workers of round 1"
    wait(world, DEAD, c)
    state = turns(c)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["c"])


def test_a_node_that_has_just_regained_its_lease_forms_no_round(tmp_path: Path) -> None:
    world = make_world(tmp_path, 2, 2)
    a, b = world.node("a"), world.node("b", round=-1)
    a.step(), b.step(), a.step()
    world.now += DEAD
    b.set_state(NodeState.READY, 0)
    b.step()
    assert a.step().state.phase is Phase.JOINING
    wait(world, MARGIN + 0.1, a, b)
    assert a.step().state.phase is Phase.RUNNING


# Changes that a node requests


def test_a_change_is_committed_in_the_next_turn(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    for node in (b, a):
        name = node.member.node
        node.rendezvous.change(lambda state, name=name: examine(state, 1, name, "no progress", 0))  # type: ignore[misc]
    versions = len(history(world))
    assert a.step().state.hang == Hang(1, 1, a.member.node)
    assert b.step().state.hang == Hang(1, 1, a.member.node), "of two requests one is granted"
    assert len(history(world)) == versions + 1
    assert a.step().state.phase is Phase.RUNNING


def test_a_change_that_loses_a_race_is_decided_anew(tmp_path: Path) -> None:
    world, a, _ = running_pair(tmp_path)
    races = iter([True, True])

    def change(state: State) -> Decision:
        if next(races, False):  # another node commits between the read and the commit
            steer_run(world.backend, "user", lambda state: request_stacks(state))
        return examine(state, 1, a.member.node, "no progress", 0)

    a.rendezvous.change(change)
    state = a.step().state
    assert (state.hang, state.stacks) == (Hang(1, 1, a.member.node), 2)


def test_a_node_that_has_just_regained_its_lease_follows_no_late_change(tmp_path: Path) -> None:
    """The round of the change may have ended: the last reading began when others had not seen its lease yet."""
    world, a, b = running_pair(tmp_path)
    wait(world, 2 * DEAD, a)
    before = b.rendezvous._known.number
    assert a.step().state.lost == b.member.node
    reads: list[float] = []

    def read(held: HeldLease, settled_at: float) -> tuple[int, State]:
        reads.append(settled_at)
        return known_read(held, settled_at)

    known_read = b.rendezvous._known.read
    b.rendezvous._known.read = read  # type: ignore[method-assign]
    b.step()
    assert b.rendezvous._known.number > before and {*reads} == {world.now + MARGIN}


def test_a_node_that_has_just_regained_its_lease_changes_nothing_yet(tmp_path: Path) -> None:
    world, a, b = running_pair(tmp_path)
    wait(world, LEASE + 0.1, b)
    a.step()  # regains its lease
    a.rendezvous.change(lambda state: examine(state, 1, a.member.node, "no progress", 0))
    assert a.step().state.hang is None
    wait(world, MARGIN + HEARTBEAT, a, b)  # its next renewal is later than the margin
    assert a.step().state.hang == Hang(1, 1, a.member.node)
