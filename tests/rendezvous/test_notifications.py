"""Notifications of a rendezvous: the nodes that it notifies, and its reaction to notifications."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.protocol import leaders, polling
from hpcelastic.protocol.changes import changed, unpack
from hpcelastic.protocol.decide import Decision, checkpoint, drain, scale
from hpcelastic.protocol.peers import Notification, PeerHeard, PeerLinkLost, PeerRefused, PeerSilent
from hpcelastic.protocol.state import Cause, Member, NodeState, Participant, Phase, State, View
from hpcelastic.rendezvous import suspicion
from hpcelastic.rendezvous.run import steer_run
from hpcelastic.storage.leases import LeaseObserver, read_leases
from tests.rendezvous.nodes import (
    DEAD,
    HEARTBEAT,
    LEASE,
    Node,
    NotifiedNode,
    RecordingNotifier,
    deliver,
    make_world,
    named,
    names,
    readings,
    running,
)


def test_a_commit_notifies_all_nodes(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    b.fail(1)
    state = b.turn()
    assert state is not None and state.phase is Phase.JOINING
    ((notified, version),) = b.new_notifications
    assert notified == {"a", "b", "c"}
    for node in (a, c):
        node.rendezvous.receive(Notification(version))
        world.now += 0.02
        assert node.turn() == state, "the node reads the new version in the next turn"
        assert node.new_notifications == []


def test_a_node_that_is_not_a_leader_follows_a_new_version_without_reading_the_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = running(tmp_path, 6)
    readers: set[str] = set()
    observe = LeaseObserver.observe
    for node in nodes:
        reader = node.rendezvous._leases.observer
        monkeypatch.setattr(
            reader, "observe", lambda *a, r=reader, n=node, **k: readers.add(n.member.name) or observe(r, *a, **k)
        )
    f = nodes[-1]
    f.fail(1)
    state = f.turn()
    assert state is not None and state.phase is Phase.JOINING and readers == {"f"}, "the node that ends a round decides"
    readers.clear()
    world.now += 0.02
    for node in nodes:
        node.rendezvous.receive(Notification(99))
        assert node.turn() == state
    assert not readers, "a leader stops its workers first"
    for _ in range(9):
        world.now += 0.052
        for node in nodes:
            node.rendezvous.receive(Notification(0))
            node.turn()
    assert readers and readers <= {"a", "b", "c"}


def test_a_new_node_among_many_reads_the_leases_once(tmp_path: Path) -> None:
    world = make_world(tmp_path, 6, 6)
    nodes = [NotifiedNode(world, world.node(name, order=i, job="7.0", job_nodes=6).member) for i, name in named(6)]
    for node in nodes:
        node.turn()
    assert [node.rendezvous._leases.own is not None for node in nodes] == [True] + [False] * 5
    assert nodes[5].new_notifications == [({"a", "b", "c"}, 1)]


def test_a_publication_notifies_the_leaders_and_they_form_the_round(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 5)
    nodes[4].fail(1)
    nodes[4].turn()
    version = nodes[4].new_notifications[0][1]
    for node in nodes[:4]:
        node.rendezvous.receive(Notification(version))
        world.now += 0.02
        node.turn()
    states = [node.turn() for node in nodes[1:]]
    assert states == [None] * 4, "only the first leader polls because of a publication"
    assert [node.new_notifications for node in nodes[1:]] == [
        [({"a", "b", "c"} - {node.member.name}, version)] for node in nodes[1:]
    ]
    nodes[0].rendezvous.receive(Notification(version))
    world.now += 0.02
    state = nodes[0].turn()
    assert state is not None and (state.phase, state.round) == (Phase.RUNNING, 2)
    assert nodes[0].new_notifications[-1][0] == {"a", "b", "c", "d", "e"}


def test_a_node_outside_the_round_proves_that_it_lives_once_the_round_has_ended(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 3)
    spare = NotifiedNode(world, world.node("d", order=3, job="7.0", job_nodes=4).member)
    spare.member = replace(spare.member, round=1)
    spare.turn()
    world.now += 0.1
    nodes[2].fail(1)
    nodes[2].turn()
    before = read_leases(world.paths.leases)[spare.member.node].heartbeat
    spare.rendezvous.receive(Notification(nodes[2].new_notifications[-1][1]))
    for _ in range(2):
        world.now += 0.06
        spare.turn()
    assert read_leases(world.paths.leases)[spare.member.node].heartbeat > before


@pytest.mark.parametrize(("order", "reads"), [(2, True), (3, False), (90, False)])
def test_of_many_nodes_that_join_a_round_only_the_first_ones_end_it_at_once(
    tmp_path: Path, order: int, reads: bool
) -> None:
    world = make_world(tmp_path, 1, 200)
    first = NotifiedNode(world, world.node("a", job="7.0", job_nodes=1).member)
    for _ in range(3):
        world.now += 0.05
        first.follow(first.step())
    assert first.member.node_state is NodeState.RUNNING
    joining = world.node("b", order=order, job="8.0", job_nodes=100, round=first.member.round).member
    newcomer = NotifiedNode(world, joining)
    newcomer.turn()
    world.now += 0.02
    newcomer.turn()
    assert (newcomer.rendezvous._leases.own is not None) is reads
    if not reads:
        assert newcomer.new_notifications[-1][0] == {"a"}, "the leaders of the round end it"


def test_a_node_with_another_worker_ends_the_round_itself(tmp_path: Path) -> None:
    _, nodes = running(tmp_path, 5)
    nodes[4].member = replace(nodes[4].member, local_world_size=nodes[4].member.local_world_size + 1)
    state = nodes[4].turn()
    assert state is not None and (state.phase, state.cause) == (Phase.JOINING, Cause.JOIN)


def test_another_leader_takes_over_soon(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    c.fail(1)
    c.turn()
    for node in (a, b, c):
        node.rendezvous.receive(Notification(10))
        world.now += 0.02
        node.turn()
    for node in (b, c):
        node.turn()
    b.rendezvous.receive(Notification(3))
    world.now += 0.1
    assert b.turn() is None
    a.rendezvous.renew(a.member)  # it has published that it is ready, and does nothing more
    world.now += 0.11
    state = b.turn()
    assert state is not None and (state.phase, state.round) == (Phase.RUNNING, 2)


def test_another_leader_does_not_read_the_leases_because_the_round_has_ended(tmp_path: Path) -> None:
    world, (a, b, c, d) = running(tmp_path, 4)
    d.fail(1)
    d.turn()
    version, before = d.new_notifications[0][1], [node.rendezvous._leases.looked_at for node in (a, b, c)]
    for node in (a, b, c):
        world.now += 0.02
        node.rendezvous.receive(Notification(version))
        state = node.turn()
        assert state is not None and state.phase is Phase.JOINING
        world.now += 0.02
        node.turn()
    assert [node.rendezvous._leases.looked_at != looked for node, looked in zip((a, b, c), before, strict=True)] == [
        True,
        False,
        False,
    ], "the first leader does so for all"


def test_a_node_without_events_renews_and_rarely_polls(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 5)
    quiet, polls, heartbeats = nodes[4], 0, set()
    for node in nodes:
        node.rendezvous.receive(Notification(99))
        world.now += 0.02
        node.turn()
    for _ in range(int(4 * LEASE)):
        world.now += 1.0
        polls += quiet.turn() is not None
        heartbeats.add(read_leases(world.paths.leases)[quiet.member.node].heartbeat)
        for node in nodes[:4]:
            node.turn()
    assert polls == 2, "twice in four leases"
    assert len(heartbeats) in (12, 13), "three times in each"


def test_a_node_with_silent_neighbours_polls_as_often_as_without_notifications(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 5)
    nodes[4].notifier.healthy = False
    nodes[4].rendezvous.receive(Notification(99))
    polls = []
    for _ in range(4):
        world.now += 0.5
        polls.append(nodes[4].turn() is not None)
    assert polls == [True] * 4


def test_the_request_of_a_user_notifies_all_members_of_the_change(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 3)
    sent: list[tuple[set[str], int, bytes]] = []

    class Recording(RecordingNotifier):
        def notify(self, members: Iterable[Member | Participant], version: int, change: bytes = b"") -> None:
            sent.append(({member.name for member in members}, version, change))

    before = nodes[0].step().state
    after = steer_run(world.backend, "user", partial(drain, nodes=("b",)), Recording())
    ((members, version, change),) = sent
    assert members == {"a", "b", "c"} and changed(before, unpack(change)) == after
    assert version == world.backend.register("test").read().number


# Several nodes decide at the same time


@pytest.mark.parametrize("announced", [True, False])
def test_a_node_follows_what_another_one_has_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    world, (_, b, c) = running(tmp_path, 3)
    b.fail(1)
    c.fail(1)
    c.rendezvous.renew(c.member)
    decide, read, readings, states = c.rendezvous._decide, c.rendezvous._register.read, [], list[State | None]()

    def decide_late(state: State) -> Decision:
        decision = decide(state)
        states.append(b.turn())
        monkeypatch.setattr(c.rendezvous, "_decide", decide)
        monkeypatch.setattr(c.rendezvous._register, "read", lambda: readings.append(None) or read())
        if announced:
            c.rendezvous.announce(c.rendezvous._known.number + 1)
        return decision

    monkeypatch.setattr(c.rendezvous, "_decide", decide_late)
    state = c.turn()
    assert states[0] is not None and states[0].phase is Phase.JOINING
    if announced:
        assert not readings and state is not None and state.phase is Phase.RUNNING
        c.rendezvous.receive(Notification(b.new_notifications[-1][1]))
        world.now += 0.02
        state = c.turn()
    assert len(readings) == 1 - announced and state == states[0]


def test_a_requested_renewal_waits_until_the_next_version_is_followed(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    c.fail(1)
    c.turn()
    version = c.new_notifications[-1][1]
    for node in (a, b, c):
        node.rendezvous.receive(Notification(version))
        world.now += 0.02
        node.turn()
        node.turn()
    heartbeat = read_leases(world.paths.leases)[b.member.node].heartbeat
    world.now += 0.3
    a.rendezvous.receive(Notification(version))
    state = a.turn()
    assert state is not None and state.phase is Phase.RUNNING
    b.rendezvous.receive(Notification(version))  # a request, while the round formed
    b.rendezvous.receive(Notification(a.new_notifications[-1][1]))
    b.rendezvous.renew(b.member)
    assert read_leases(world.paths.leases)[b.member.node].heartbeat == heartbeat
    assert b.turn() == state


# Lost and silent neighbours


@pytest.mark.parametrize(
    ("lost", "delay"),
    [("", 0.2), ("e", 0.7), ("ea", 1.7), ("ead", 1.7)],
    ids=["all are left", "the first is lost", "two are lost", "three are lost"],
)
@pytest.mark.usefixtures("large_rounds")
def test_the_neighbours_of_a_lost_node_in_a_large_round_look_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, delay: float
) -> None:
    world, nodes = running(tmp_path, 5)
    gone, looks = nodes[2], dict[str, list[str]]()
    left = [node for node in nodes if node is not gone and node.member.name not in lost]
    for node in left:
        looks[node.member.name] = recorded_looks(node, monkeypatch)
        node.rendezvous.receive(PeerLinkLost(gone.member.node))
        node.rendezvous.renew(node.member)
    states, began = list[State](), world.now
    world.now += 0.2
    while not states:
        for node in left:
            node.rendezvous.receive(PeerRefused(gone.member.node))
            state = node.turn()
            states += [state] if state and state.phase is Phase.JOINING else []
        world.now += 0.5
    assert states[0].lost == gone.member.node
    assert world.now - began - 0.5 == pytest.approx(delay)
    first = min(left, key=lambda node: "eadb".index(node.member.name)).member.name
    assert len(looks[first]) >= 2 and len(looks["b"]) <= 2, "the last neighbour looks late, if at all"
    if not lost:
        assert [name for name, found in looks.items() if found] == ["a", "e"], "the second one has only looked once"


def test_a_refusing_neighbour_with_an_unchanged_lease_is_lost_at_once(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    a.rendezvous.receive(PeerLinkLost(b.member.node))
    a.turn()
    world.now += 0.2
    a.rendezvous.receive(PeerRefused(b.member.node))
    state = a.turn()
    assert state is not None
    assert (state.phase, state.cause, state.reason) == (Phase.JOINING, Cause.NODE, "b was lost")
    assert read_leases(world.paths.leases)[a.member.node].member.dead == (b.member.node,)
    version = a.new_notifications[-1][1]
    for node in (a, c):
        node.rendezvous.receive(Notification(version))
        world.now += 0.02
        node.turn()
        node.turn()
    a.rendezvous.receive(Notification(version))
    world.now += 0.3
    state = a.turn()
    assert state is not None and (state.phase, names(state)) == (Phase.RUNNING, ["a", "c"]), (
        "no node waits for its lease"
    )


def looks(node: Node, news: PeerLinkLost | PeerRefused) -> bool:
    """Return whether the node looks at the lease of a neighbour because of news from the network."""
    with pytest.MonkeyPatch.context() as patch:
        found = recorded_looks(node, patch)
        node.rendezvous.receive(news)
        if node.rendezvous._suspicions.pause <= 0:
            node.rendezvous.renew(node.member)
    return bool(found)


def recorded_looks(node: Node, patch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> list[str]:
    """Return a list of the neighbours at whose leases the node looks from now on. ``then`` follows each look."""
    observer, found = node.rendezvous._leases.observer, list[str]()
    look = observer.lease_versions

    def recorded(nodes: Collection[str]) -> Mapping[str, str]:
        found.extend(nodes)
        versions = look(nodes)
        then()
        return versions

    patch.setattr(observer, "lease_versions", recorded)
    return found


def test_a_neighbour_that_another_node_has_reported_is_looked_at_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "_DEFERRAL", 0.25)
    world, (a, b, c) = running(tmp_path, 3)
    link_lost, refused = PeerLinkLost(b.member.node), PeerRefused(b.member.node)
    assert looks(a, link_lost) and looks(c, link_lost)
    world.now += 0.2
    assert looks(a, refused)
    a.turn()
    world.now += 0.02
    c.rendezvous.receive(Notification(a.new_notifications[-1][1]))
    c.turn()
    for _ in range(7):
        world.now += 0.1
        assert not looks(a, refused) and not looks(c, refused)
        c.turn()
    world.now += 0.1
    assert not looks(a, refused), "it has reported the node itself"
    assert looks(c, refused) and not c.rendezvous._suspicions.gone, "the report of the other one counts"
    world.now += 0.5
    assert not looks(c, refused)
    for node in (a, c, a, c, a, c):
        world.now += 0.3
        node.follow(node.step())
    assert names(c.step().state) == ["a", "c"]
    assert not c.rendezvous._suspicions.suspects(b.member.node), "it is no member any more"


@pytest.mark.usefixtures("large_rounds")
def test_the_first_neighbour_of_a_node_that_is_lost_as_the_round_ends_looks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "_DEFERRAL", 0.15)
    world, (a, b, c, d, e) = running(tmp_path, 5)
    link_lost, refused = PeerLinkLost(c.member.node), PeerRefused(c.member.node)
    for node in (e, a, d, b):
        assert looks(node, link_lost) == (node in (e, a))
    d.fail(1)
    d.turn()
    version = d.new_notifications[-1][1]
    for node in (a, b, e):
        node.rendezvous.receive(Notification(version))
        state = node.turn()
        assert state is not None and state.phase is Phase.JOINING and not state.lost
    world.now += 0.2
    assert looks(e, refused) and e.rendezvous._suspicions.gone == {c.member.node}
    world.now += 0.5
    assert not looks(a, refused), "without the end of the round it would be its turn now"
    world.now += 0.5
    assert looks(a, refused) and not a.rendezvous._suspicions.gone, "another node has reported it"


def suspected_as_the_round_ends(root: Path) -> tuple[list[NotifiedNode], int]:
    """Return the nodes of a large round that d has ended, with its version. The second neighbour a suspects c."""
    world, nodes = running(root, 5)
    a, _b, c, d, _e = nodes
    assert looks(a, PeerLinkLost(c.member.node))
    d.fail(1)
    d.turn()
    version = d.new_notifications[-1][1]
    a.rendezvous.receive(Notification(version))
    a.turn()
    world.now += 0.2
    return nodes, version


@pytest.mark.usefixtures("large_rounds")
def test_a_probed_node_looks_at_a_node_that_is_lost_with_its_first_neighbour(tmp_path: Path) -> None:
    (a, b, c, _d, _e), version = suspected_as_the_round_ends(tmp_path)
    refused = PeerRefused(c.member.node)
    assert not looks(a, refused) and looks(a, Notification(version))
    assert a.rendezvous._suspicions.gone == {c.member.node}
    a.turn()
    assert ({"d", "e"}, version) in a.new_notifications, "the leaders wait for this"
    assert not looks(a, refused) and not looks(a, Notification(version)), "it has reported the node"
    assert not looks(b, Notification(version)), "it suspects no node"


@pytest.mark.usefixtures("large_rounds")
def test_a_notification_of_a_known_change_is_no_probe(tmp_path: Path) -> None:
    (a, _b, c, _d, _e), version = suspected_as_the_round_ends(tmp_path)
    assert not looks(a, PeerRefused(c.member.node))
    assert not looks(a, Notification(version, b"change")), "a heartbeat may have told the version before"


def test_a_neighbour_reports_a_lost_node_again_if_the_report_of_another_one_no_longer_counts(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    refused = PeerRefused(b.member.node)
    for node in (a, c):
        assert looks(node, PeerLinkLost(b.member.node))
    world.now += 0.2
    assert looks(a, refused)
    a.turn()
    world.now += 0.02
    c.rendezvous.receive(Notification(a.new_notifications[-1][1]))
    for _ in range(8):
        world.now += 0.5
        c.turn()
        c.rendezvous.receive(refused)
        assert not c.rendezvous._suspicions.gone
    while c.rendezvous._leases.nodes[a.member.node].alive:
        world.now += 0.5
        c.turn()
    c.rendezvous.receive(refused)
    world.now += 0.1
    c.turn()
    assert names(c.step().state) == ["c"]


def test_a_report_of_a_node_that_was_lost_with_the_last_round_does_not_end_the_next_one(tmp_path: Path) -> None:
    world, (a, b, c, d, e, f) = running(tmp_path, 6)
    for node in (d, f):
        assert looks(node, PeerLinkLost(e.member.node))
    world.now += 0.2
    for node in (d, f):
        assert looks(node, PeerRefused(e.member.node))
    f.turn()
    version = f.new_notifications[-1][1]
    for node in (d, f, c, b, a):
        node.rendezvous.receive(Notification(version))
        world.now += 0.02
        node.turn()
        node.turn()
    a.rendezvous.receive(Notification(version))
    world.now += 0.1
    a.turn()
    looked = d.rendezvous._leases.looked_at
    d.rendezvous.receive(Notification(version + 1))
    state = d.turn()
    assert state is not None and (state.phase, names(state)) == (Phase.RUNNING, ["a", "b", "c", "d", "f"])
    assert d.rendezvous._leases.looked_at == looked, "a listing would delay its workers"


def test_a_node_that_reports_a_loss_notifies_the_leaders_before_it_reads_the_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = running(tmp_path, 6)
    lost, last = nodes[-2:]
    last.rendezvous.receive(PeerLinkLost(lost.member.node))
    last.turn()
    world.now += 0.2
    last.rendezvous.receive(PeerRefused(lost.member.node))
    observer, notified = last.rendezvous._leases.observer, list[Any]()
    observe = observer.observe
    monkeypatch.setattr(
        observer, "observe", lambda *a, **k: notified.extend(last.notifier.notified) or observe(*a, **k)
    )
    version = last.rendezvous._known.number
    assert last.turn() is not None
    assert notified == [({"a", "b", "c"}, version)]


def test_a_lease_that_two_looks_do_not_show_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, (a, b, _c) = running(tmp_path, 3)
    monkeypatch.setattr(a.rendezvous._leases.observer, "lease_versions", lambda nodes: {})
    for news in (PeerLinkLost(b.member.node), PeerRefused(b.member.node)):
        a.rendezvous.receive(news)
        a.turn()
        world.now += 0.2
    a.turn()
    assert not a.rendezvous._suspicions.gone and not a.rendezvous._suspicions.suspects(b.member.node)


@pytest.mark.parametrize("newer", [False, True], ids=["", "after a version without a reading"])
def test_the_leases_are_read_once_for_the_decision_about_a_death(
    newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = running(tmp_path, 6)
    lost, last = nodes[-2:]
    reader, readings = last.rendezvous._leases.observer, list[float]()
    observe = reader.observe
    monkeypatch.setattr(reader, "observe", lambda *a, **k: readings.append(world.now) or observe(*a, **k))
    if newer:
        steer_run(world.backend, "user", partial(scale, nodes=6))
        last.rendezvous.receive(Notification(last.rendezvous._known.number + 1))
        state = last.turn()
        assert state is not None and state.target == 6 and not readings
    last.rendezvous.receive(PeerLinkLost(lost.member.node))
    last.turn()
    world.now += 0.2
    last.rendezvous.receive(PeerRefused(lost.member.node))
    state = last.turn()
    assert state is not None and state.reason == "e was lost"
    assert readings.count(world.now) == 1


def test_a_neighbour_that_refuses_connections_early_is_looked_at_again_in_time(tmp_path: Path) -> None:
    world, (a, b, _c) = running(tmp_path, 3)
    link_lost, refused = PeerLinkLost(b.member.node), PeerRefused(b.member.node)
    assert looks(a, link_lost)
    world.now += 0.04
    assert not looks(a, refused), "its lease may still be renewed"
    a.turn()
    assert a.rendezvous.pause() == pytest.approx(0.06)
    world.now += 0.03
    assert not looks(a, refused) and a.rendezvous.pause() == pytest.approx(0.03)
    world.now += a.rendezvous.pause()
    state = a.turn()
    assert state is not None and (state.phase, state.reason) == (Phase.JOINING, "b was lost")
    looked = a.rendezvous._leases.looked_at
    assert looked == world.now, "without another refusal"
    world.now += 0.02
    assert not looks(a, refused)


def test_a_slow_first_look_delays_the_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, (a, b, _c) = running(tmp_path, 3)

    def take_long() -> None:
        world.now += 0.16

    recorded_looks(a, monkeypatch, then=take_long)
    assert looks(a, PeerLinkLost(b.member.node)) and not looks(a, PeerRefused(b.member.node))
    assert a.rendezvous._suspicions.pause == pytest.approx(0.1), "from the end of the first one"
    world.now += 0.1
    a.turn()
    assert a.rendezvous._suspicions.gone == {b.member.node}


def test_a_refusing_neighbour_with_a_renewed_lease_is_not_lost(tmp_path: Path) -> None:
    world, (a, b, _c) = running(tmp_path, 3)
    for _ in range(3):
        a.rendezvous.receive(PeerLinkLost(b.member.node))
        b.rendezvous.receive(PeerLinkLost(a.member.node))
        world.now += 0.1
        b.turn()  # a node with a lost link renews its lease
        world.now += 0.1
        a.rendezvous.receive(PeerRefused(b.member.node))
        a.turn()
        assert a.step().state.phase is Phase.RUNNING
    a.rendezvous.renew(a.member)
    assert read_leases(world.paths.leases)[a.member.node].member.dead == ()


def test_only_a_refusal_proves_nothing(tmp_path: Path) -> None:
    world, (a, b, _c) = running(tmp_path, 3)
    a.rendezvous.receive(PeerRefused(b.member.node))
    assert a.step().state.phase is Phase.RUNNING
    a.rendezvous.receive(PeerRefused(b.member.node))
    assert a.step().state.phase is Phase.RUNNING, "its lease must be unchanged between two polls"
    world.now += 0.2
    a.rendezvous.receive(PeerRefused(b.member.node))
    assert a.step().state.phase is Phase.JOINING


def test_a_node_outside_of_the_round_is_not_declared_lost(tmp_path: Path) -> None:
    world, (a, _b) = running(tmp_path, 2)
    for news in (PeerLinkLost("stranger@0"), PeerRefused("stranger@0"), PeerRefused("stranger@0")):
        assert not looks(a, news), "nothing would follow"
        world.now += 0.2
        assert a.step().state.phase is Phase.RUNNING
    assert read_leases(world.paths.leases)[a.member.node].member.dead == ()


def test_a_node_that_was_declared_lost_by_mistake_returns(tmp_path: Path) -> None:
    world, (a, b) = running(tmp_path, 2)
    a.rendezvous.receive(PeerRefused(b.member.node))
    world.now += 0.2
    a.rendezvous.receive(PeerRefused(b.member.node))
    for _ in range(4):
        world.now += 0.3
        a.follow(a.step())
    assert names(a.step().state) == ["a"]
    b.member = replace(b.member, node_state=NodeState.READY, round=2)
    for _ in range(4):
        world.now += 0.3
        b.follow(b.step()), a.follow(a.step())
    state = a.step().state
    assert (state.phase, state.round, set(names(state))) == (Phase.RUNNING, 3, {"a", "b"})


def test_a_silent_neighbour_is_lost_only_when_its_lease_expires(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    a.step()
    a.rendezvous.receive(PeerSilent(b.member.node))
    a.notifier.healthy = False
    began, state = world.now, a.step().state
    while state.phase is Phase.RUNNING:
        world.now += 0.5
        c.turn()
        found = a.turn()
        state = found or state
    assert state.reason == "b was lost"
    assert DEAD - HEARTBEAT - 0.5 <= world.now - began <= DEAD + 0.5


def test_a_silent_neighbour_is_lost_as_soon_as_its_lease_has_expired(tmp_path: Path) -> None:
    world, (a, b, c) = running(tmp_path, 3)
    world.now += HEARTBEAT
    for node in (c, b, a):
        node.step()
    seen = world.now
    world.now += 0.2
    a.rendezvous.receive(PeerSilent(b.member.node))
    a.notifier.healthy = False
    state = a.turn()
    while state is None or state.phase is Phase.RUNNING:
        world.now += max(0.001, a.rendezvous.pause())
        c.turn()
        state = a.turn()
    assert state.reason == "b was lost"
    assert DEAD < world.now - seen < DEAD + 0.05


@pytest.mark.usefixtures("rare_readings")
def test_silent_leaders_are_lost_also_if_no_other_node_reads_the_leases(tmp_path: Path) -> None:
    """In a large round, the other nodes read the leases too seldom."""
    world, nodes = running(tmp_path, 7)
    lost = {leader.node for leader in leaders.leaders(nodes[0].step().state, View({}), 7)}
    left = [node for node in nodes if node.member.node not in lost]
    assert len(lost) == 3
    for _ in range(10):
        world.now += HEARTBEAT
        for node in nodes:
            node.rendezvous.renew(node.member)
    began, world.now = world.now, world.now + 1.5
    for node in left:
        for name in lost.intersection(node.neighbours):
            node.rendezvous.receive(PeerSilent(name))
    state = deliver(world, left, until=began + 3 * DEAD)
    assert (state.phase, state.round) == (Phase.RUNNING, 2) and lost.isdisjoint(state.ranks)
    assert world.now - began < DEAD + 5.0


@pytest.mark.parametrize(
    ("count", "dead"),
    [
        pytest.param(8, "abcd", id="the first nodes"),
        pytest.param(8, "adg", id="all leaders"),
        pytest.param(24, "abcdijklqrst", id="all leaders with the next nodes"),
    ],
)
@pytest.mark.usefixtures("rare_readings")
def test_of_nodes_lost_together_with_leaders_the_next_one_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, dead: str
) -> None:
    monkeypatch.setattr(polling, "_MAX_POLL_RATE", 0.1)
    world, nodes = running(tmp_path, count)
    lost = {node.member.node for node in nodes if node.member.name in dead}
    left, began = [node for node in nodes if node.member.node not in lost], world.now
    for news in (PeerLinkLost, PeerRefused, PeerRefused):
        for node in left:
            for name in lost.intersection(node.neighbours):
                node.rendezvous.receive(news(name))
            node.turn()
        world.now += 0.2
    state = deliver(world, left, until=began + 3 * DEAD)
    assert (state.phase, state.round) == (Phase.RUNNING, 2) and lost.isdisjoint(state.ranks)
    assert world.now - began < 6.0


def test_a_report_of_a_node_that_is_alive_after_all_is_withdrawn(tmp_path: Path) -> None:
    """No round forms without it, and its lease shows that it lives."""
    world, (a, b) = running(tmp_path, 2, minimum=2)
    a.rendezvous.receive(PeerLinkLost(b.member.node))
    a.turn()
    world.now += 0.2
    a.rendezvous.receive(PeerRefused(b.member.node))
    state = a.turn()
    assert state is not None and state.reason == "b was lost"
    state = deliver(world, [a, b], until=world.now + 60.0)
    assert (state.phase, set(names(state))) == (Phase.RUNNING, {"a", "b"})


@pytest.mark.parametrize("error", [True, False], ids=["an error", "a slow listing"])
def test_a_look_at_the_lease_of_a_neighbour_does_not_delay_the_own_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: bool
) -> None:
    world, (a, b) = running(tmp_path, 2)
    a.rendezvous.receive(PeerLinkLost(b.member.node))
    a.turn()
    world.now += HEARTBEAT
    a.rendezvous.receive(PeerRefused(b.member.node))
    before, at_the_look = a.rendezvous._lease.held.end, []

    def look(nodes: Collection[str]) -> Mapping[str, str]:
        at_the_look.append(a.rendezvous._lease.held.end)
        if error:
            raise StoreError("the listing fails")
        return {}

    monkeypatch.setattr(a.rendezvous._leases.observer, "lease_versions", look)
    with pytest.raises(StoreError) if error else contextlib.nullcontext():
        a.turn()
    assert at_the_look == [world.now + LEASE] and at_the_look[0] > before


@pytest.mark.usefixtures("rare_readings")
def test_a_silence_that_is_told_again_and_again_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may stay in the last round for as long as the run waits for another one."""
    world, nodes = running(tmp_path, 12)
    node = nodes[6]
    (silent, *_) = sorted(node.neighbours)
    found = readings(node, monkeypatch)
    for _ in range(100):
        node.rendezvous.receive(PeerSilent(silent))
        node.turn()
        world.now += 0.1
    assert len(found) == 1


@pytest.mark.parametrize("joining", [False, True], ids=["a round runs", "a round forms"])
@pytest.mark.parametrize("cut", [True, False], ids=["from all", "from one"])
@pytest.mark.usefixtures("rare_readings")
def test_a_node_that_hears_no_neighbour_leaves_their_expiry_to_the_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool, joining: bool
) -> None:
    """The network may be cut between all nodes, and each reading lists all leases."""
    world, nodes = running(tmp_path, 12)
    node = nodes[6]
    monkeypatch.setattr(leaders, "_TURN_INTERVAL", 1e9)
    monkeypatch.setattr(leaders, "_WATCHERS", 0)
    if joining:
        steer_run(world.backend, "user", checkpoint)
        node.rendezvous.poll_again()
        assert (node.turn() or State("", world.settings)).phase is Phase.JOINING
    looks, found = recorded_looks(node, monkeypatch), readings(node, monkeypatch)
    for name in sorted(node.neighbours)[: 12 if cut else 1]:
        for news in (PeerSilent(name), PeerLinkLost(name)):
            node.rendezvous.receive(news)
    for _ in range(600):
        for each in nodes:
            each.rendezvous.renew(each.member)
        node.turn()
        world.now += 0.1
    assert looks == [] and (len(found) == 1 if cut else len(found) > 1)


def test_a_link_that_is_made_again_is_forgotten(tmp_path: Path) -> None:
    _, (a, b, _c) = running(tmp_path, 3)
    a.rendezvous.receive(PeerLinkLost(b.member.node))
    assert a.rendezvous._suspicions.suspects(b.member.node)
    a.rendezvous.receive(PeerHeard(b.member.node))
    assert not a.rendezvous._suspicions.suspects(b.member.node)


def test_a_silent_node_that_is_no_neighbour_any_more_is_forgotten(tmp_path: Path) -> None:
    _, nodes = running(tmp_path, 8)
    node = nodes[0]
    (silent, *_) = (other for other in nodes if other.member.node in node.neighbours)
    node.rendezvous.receive(PeerSilent(silent.member.node))
    assert node.rendezvous._suspicions.watchful
    for name in (silent.member.node, node.member.node):
        state = node.rendezvous._known.state
        others = tuple(p for p in state.participants if p.node != name)
        node.rendezvous._known.state = replace(state, participants=others)
        node.rendezvous._suspicions.keep()
        assert not node.rendezvous._suspicions.watchful
        node.rendezvous._known.state = state
        node.rendezvous.receive(PeerSilent(silent.member.node))


def test_a_listing_that_fails_when_a_link_breaks_does_not_delay_the_own_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (a, b) = running(tmp_path, 2)
    monkeypatch.setattr(a.rendezvous._leases.observer, "lease_versions", Mock(side_effect=StoreError("it fails")))
    before = a.rendezvous._lease.held.end
    a.rendezvous.receive(PeerLinkLost(b.member.node))
    a.turn()
    assert a.rendezvous._lease.held.end > before


def test_a_neighbour_that_is_no_longer_silent_is_ordinary(tmp_path: Path) -> None:
    world, nodes = running(tmp_path, 5)
    quiet = nodes[4]
    quiet.rendezvous.receive(PeerSilent("d@0-ab"))
    world.now += 0.02
    assert quiet.turn() is not None
    world.now += 0.5
    assert quiet.turn() is not None, "a silent neighbour is observed"
    quiet.rendezvous.receive(PeerHeard("d@0-ab"))
    world.now += 0.5
    quiet.turn()
    world.now += 0.5
    assert quiet.turn() is None


def test_a_leader_reads_again_soon_although_the_register_was_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, (_a, b, _c) = running(tmp_path, 3)

    def slow(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = original(*arguments)
            world.now += 0.5
            return result

        return call

    monkeypatch.setattr(b.rendezvous._register, "read", slow(b.rendezvous._register.read))
    b.step()
    b.rendezvous.receive(Notification(0))
    assert b.rendezvous.pause() == pytest.approx(0.2), "the wait of the second leader"
    monkeypatch.setattr(b.rendezvous._leases, "look", slow(b.rendezvous._leases.look))
    b.rendezvous.poll_again()
    b.step()
    b.rendezvous.receive(Notification(0))
    assert b.rendezvous.pause() == pytest.approx(0.5), "as long as it has read the leases"


def test_a_node_starts_its_workers_before_it_reads_the_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large run the reading waits behind the requests of all other nodes."""
    world, nodes = running(tmp_path, 5)
    *others, last = nodes
    steer_run(world.backend, "user", checkpoint)
    for node in (last, *others, *others):
        world.now += 0.5
        node.rendezvous.poll_again()
        node.turn()
        node.rendezvous.renew(node.member)
    assert nodes[0].member.round == 2
    found = readings(last, monkeypatch)
    for number in (0, 1):
        world.now += 0.5
        last.rendezvous.poll_again()
        last.rendezvous._schedule.read_within(0.0)
        state = last.turn()
        assert state is not None and (state.phase, state.round) == (Phase.RUNNING, 2)
        assert len(found) == number
