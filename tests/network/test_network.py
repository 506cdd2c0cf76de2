import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hpcelastic.network import (
    Network,
    News,
    Notification,
    Peer,
    PeerHeard,
    PeerLinkLost,
    PeerRefused,
    PeerSilent,
    network,
    sockets,
)
from hpcelastic.network.channel import Session
from hpcelastic.network.links import Links
from hpcelastic.network.messages import NONCE, Kind, Message, encode, encode_change
from hpcelastic.network.notifications import NOTIFICATION_INTERVAL
from hpcelastic.protocol.peers import linked
from tests.agent.processes import TIMEOUT, eventually
from tests.filesystems.availability import require
from tests.network.agents import KEY, Inbox, Local, Remote, held, local, remote
from tests.network.namespaces import two_machines, why_no_namespaces


@pytest.fixture(params=["127.0.0.1", "::1"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def free_port() -> int:
    """Return a port on which no process listens."""
    datagram, stream = sockets.bind_pair(socket.AF_INET)
    port: int = stream.getsockname()[1]
    datagram.close()
    stream.close()
    return port


@pytest.fixture
def pair() -> Iterator[tuple[Local, Remote]]:
    """A network here and one in its own process, with a link between them."""
    with local("here@1") as [here], remote("there@1") as [there]:
        join(here, there)
        yield here, there


def join(here: Local, there: Remote) -> None:
    ring = [here.peer, there.peer]
    here.network.watch(ring, 0)
    there.watch(ring)
    assert eventually(lambda: here.network.healthy and there.healthy())


def near(it: Local, members: list[Local]) -> list[Peer]:
    """Return the neighbours of a node among the members of a round; none for other nodes."""
    return [members[there].peer for there in linked(members.index(it), len(members))] if it in members else []


def watch(found: list[Local], version: int = 0) -> None:
    for it in found:
        it.network.watch(near(it, found), version)
    assert eventually(lambda: all(it.network.healthy for it in found))


# Notifications


def test_only_notified_nodes_get_the_version(address: str) -> None:
    with local("a@1", "b@1", "c@1", address=address) as [a, b, c]:
        a.network.notify([a.peer, b.peer], 7)
        assert b.inbox.take() == Notification(7)
        a.network.notify([a.peer, b.peer, c.peer], 8)
        assert c.inbox.take() == Notification(8)
        a.network.notify([c.peer], 8)
        assert c.inbox.take() == Notification(8), "a notification may have no new version"
        assert a.inbox.take(0.0) is None


def test_a_node_with_ipv4_notifies_one_with_ipv6() -> None:
    with local("a@1") as [a], local("b@1", address="::1") as [b]:
        a.network.notify([b.peer], 7)
        assert b.inbox.take() == Notification(7)


def test_forged_and_replayed_notifications_are_dropped() -> None:
    with local("a@1") as [a], socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        genuine = [encode(KEY, Message(Kind.NOTIFICATION, "b@1", sequence, sequence)) for sequence in range(1, 4)]
        forged = [
            encode(b"another", Message(Kind.NOTIFICATION, "b@1", 9, 9)),
            encode(KEY, Message(Kind.HEARTBEAT, "b@1", 9, 9)),
            encode(KEY, Message(Kind.NOTIFICATION, "a@1", 9, 9)),
            genuine[2][:-1],
            b"",
            b"\0" * 2000,
        ]
        sock.connect(("127.0.0.1", a.peer.port))
        for data in (*forged, genuine[1], genuine[1], genuine[0]):
            sock.send(data)
        assert a.inbox.take() == Notification(2)
        for data in (*forged, genuine[1], genuine[2]):
            sock.send(data)
        assert a.inbox.take() == Notification(3)
        assert a.inbox.take(5 * NOTIFICATION_INTERVAL) is None


def test_a_change_is_delivered_once_and_not_if_it_was_altered() -> None:
    with local("a@1", "b@1") as [a, b], socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        a.network.notify([b.peer], 7, b"seven")
        assert b.inbox.take() == Notification(7, b"seven")
        sock.connect(("127.0.0.1", b.peer.port))
        genuine = encode_change(KEY, Message(Kind.NOTIFICATION, "c@1", 1, 8), b"eight")
        for data in (
            genuine[:-1],
            genuine[:-5] + b"EIGHT",
            encode_change(b"another", Message(Kind.NOTIFICATION, "c@1", 2, 9), b"9"),
        ):
            sock.send(data)
        assert b.inbox.take(5 * NOTIFICATION_INTERVAL) is None
        for data in (genuine, genuine):
            sock.send(data)
        assert b.inbox.take() == Notification(8, b"eight")
        sock.send(encode_change(KEY, Message(Kind.NOTIFICATION, "c@1", 2, 8), b"eight"))
        assert b.inbox.take() == Notification(8), "of another sender, so only as a notification"


def test_a_flood_of_notifications_is_limited_and_the_last_one_counts() -> None:
    with local("a@1", "b@1") as [a, b]:
        began = time.monotonic()
        for version in range(200):
            a.network.notify([b.peer], version)
        assert b.inbox.await_(Notification(199))
        assert len(b.inbox.all) <= (time.monotonic() - began) / NOTIFICATION_INTERVAL + 1


@pytest.mark.parametrize("where", ["node-1", "localhost", "", "fe80::1%lo", "10.0.0.256"])
def test_addresses_that_are_not_numeric_are_skipped(where: str) -> None:
    with local("a@1", "b@1") as [a, b]:
        odd = [Peer("c@1", where, 9), Peer("d@1", "127.0.0.1", 0), Peer("e@1", "127.0.0.1", 65536)]
        a.network.notify([*odd, b.peer], 1)
        assert b.inbox.take() == Notification(1)
        for it in (a, b):
            it.network.watch([a.peer, *odd, b.peer], 0)
        assert eventually(lambda: a.network.healthy and b.network.healthy), "the other links are not affected"


def test_a_network_failure_raises_no_error() -> None:
    with local("a@1") as [a]:
        a.network.notify([Peer("b@1", "240.0.0.1", 9), Peer("c@1", "2001:db8::1", 9)], 1)
        a.network.watch([a.peer, Peer("b@1", "240.0.0.1", 9)], 0)
        assert a.inbox.await_(PeerSilent("b@1"), times=2)
        assert PeerRefused("b@1") not in a.inbox.all


# Links


def test_all_links_are_made_and_heartbeats_have_the_version(address: str) -> None:
    with local(*(f"n{index}@1" for index in range(7)), address=address) as found:
        assert not any(it.network.healthy for it in found), "the networks have no neighbours yet"
        watch(found)
        found[3].network.watch(near(found[3], found), 5)
        for there in (2, 4, 1, 5):
            assert found[there].inbox.take() == Notification(5)
        watch(found, 5)
        watch(found, 5)
        # A heartbeat of a neighbour with the version may be faster than this node's own call of `watch`.
        first, *others, last = [it.inbox.take(0.0) for it in found]
        assert others == [None] * 5 and {first, last} <= {None, Notification(5)}
        assert [it.inbox.take(0.0) for it in found] == [None] * 7, "a version is reported once, and no link is lost"


def test_a_version_that_datagrams_have_brought_goes_to_one_neighbour_of_each_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receivers, send = list[str](), Links._send_heartbeats

    def record(links: Links, most: int | None = None) -> None:  # not at the connection: a late link sends one too
        receivers.extend(str(connection.session.peer) for connection in links._established()[:most])
        send(links, most)

    with local("writer@1", *(f"n{index}@1" for index in range(7)), interval=60.0) as [writer, *found]:
        watch(found)
        neighbours = [one for it in found for one in it.network._links._neighbours.values()]
        assert eventually(lambda: all(one.detector.next_dial is None for one in neighbours)), "no link is replaced now"
        monkeypatch.setattr(Links, "_send_heartbeats", record)
        writer.network.notify([it.peer for it in found], 5)
        for it in found:
            assert it.inbox.take() == Notification(5)
        watch(found, 5)
        assert eventually(lambda: len(receivers) >= 7)
    assert sorted(receivers) == [it.peer.node for it in found]


def test_a_node_that_does_not_know_the_round_yet_answers() -> None:
    with local("a@1", "b@1") as [a, b]:
        ring = [a.peer, b.peer]
        a.network.watch(ring, 0)
        assert eventually(lambda: a.network.healthy)
        assert not b.network.healthy
        b.network.watch(ring, 0)
        assert eventually(lambda: b.network.healthy)
        assert a.inbox.take(0.0) is b.inbox.take(0.0) is None


def test_a_former_neighbour_is_not_watched() -> None:
    with local("a@1", "b@1", "c@1") as [a, b, c]:
        watch([a, b, c])
        for it in (a, b):
            it.network.watch([a.peer, b.peer], 0)
        c.network.watch([c.peer], 0)
        assert eventually(lambda: not c.network.healthy)
        c.network.close()
        a.network.notify([b.peer], 1)
        assert b.inbox.take() == Notification(1)
        assert eventually(lambda: a.network.healthy and b.network.healthy)
        assert a.inbox.take(0.0) is None
        assert b.inbox.all == [Notification(1)]


def test_a_node_without_neighbours_watches_no_node() -> None:
    with local("a@1", "b@1", "c@1") as [a, b, c]:
        watch([a, b, c])
        a.network.watch([], 0)
        assert eventually(lambda: not a.network.healthy)


# Ended and stopped agents


def test_refusals_of_a_killed_agent_are_reported_while_it_is_watched(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    there.signal(signal.SIGKILL)
    assert here.inbox.take() == PeerLinkLost("there@1")
    with held(there.peer):
        assert here.inbox.await_(PeerRefused("there@1"), times=3)
    assert set(here.inbox.all) == {PeerLinkLost("there@1"), PeerRefused("there@1")}
    here.network.watch([here.peer], 0)
    assert eventually(lambda: not here.network._links._neighbours)
    here.inbox.drain()
    assert here.inbox.take(1.0) is None


def test_no_refusal_is_reported_while_a_process_of_the_agent_is_alive(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    child = there.start_child()
    there.signal(signal.SIGKILL)
    assert here.inbox.take() == PeerLinkLost("there@1")
    assert here.inbox.await_(PeerSilent("there@1"), times=4)
    assert PeerRefused("there@1") not in here.inbox.all
    os.kill(child, signal.SIGKILL)
    with held(there.peer):
        assert here.inbox.await_(PeerRefused("there@1"), times=2)


def test_a_stopped_agent_is_silent_until_it_continues(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    there.signal(signal.SIGSTOP)
    assert here.inbox.take() == PeerSilent("there@1")
    assert not here.network.healthy
    there.signal(signal.SIGCONT)
    assert here.inbox.await_(PeerHeard("there@1"))
    assert eventually(lambda: here.network.healthy and there.healthy())
    assert PeerRefused("there@1") not in here.inbox.all


def test_a_stopped_agent_is_silent_although_its_heartbeats_arrived_during_a_long_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not dated into the future."""
    hangs, continues, pause = threading.Event(), threading.Event(), 0.0
    inbox = Inbox()

    def clock() -> float:
        return time.monotonic() + pause

    def deliver(news: News) -> None:
        inbox.put(news)
        if news == Notification(7):
            hangs.set()
            continues.wait(TIMEOUT)

    monkeypatch.setattr(network, "time", SimpleNamespace(**vars(time) | {"monotonic": clock}))
    with (
        contextlib.closing(Network(KEY, "here@1", "127.0.0.1", deliver)) as here,
        remote("there@1", "third@1") as [there, third],
    ):
        ring = [Peer("here@1", "127.0.0.1", here.port), there.peer, third.peer]
        here.start()
        here.watch([there.peer], 0)
        there.watch(ring)
        third.watch([there.peer])
        assert eventually(lambda: here.healthy and there.healthy() and third.healthy())
        there.watch(ring, 7)
        assert hangs.wait(TIMEOUT)
        for version in (8, 9):  # heartbeats with 8 have been sent to all neighbours before those with 9
            there.watch(ring, version)
            assert third.inbox.await_(Notification(version))
        there.signal(signal.SIGSTOP)
        pause = 1000.0
        continues.set()
        assert inbox.await_(PeerSilent("there@1"))


def test_an_agent_that_was_stopped_for_long_gets_a_new_link(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    there.signal(signal.SIGSTOP)
    assert here.inbox.await_(PeerLinkLost("there@1")), "the link times out"
    assert here.inbox.await_(PeerSilent("there@1"), times=3)
    there.signal(signal.SIGCONT)
    assert here.inbox.await_(PeerHeard("there@1"))
    assert there.inbox.await_(PeerLinkLost("here@1")), "it should send heartbeats"
    assert eventually(lambda: here.network.healthy and there.healthy())
    assert PeerRefused("there@1") not in here.inbox.all


def test_refusals_of_an_agent_killed_while_stopped_are_reported(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    there.signal(signal.SIGSTOP)
    assert here.inbox.await_(PeerLinkLost("there@1"))
    there.signal(signal.SIGKILL)
    with held(there.peer):
        assert here.inbox.await_(PeerRefused("there@1"))


def test_an_agent_that_leaves_in_order_is_not_reported(pair: tuple[Local, Remote]) -> None:
    here, there = pair
    there.start_child()
    there.close()
    assert here.inbox.await_(PeerSilent("there@1"), times=3)
    assert set(here.inbox.all) == {PeerSilent("there@1")}


def test_a_neighbour_that_never_existed_is_silent(free_port: int) -> None:
    with local("a@1") as [a]:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", free_port)], 0)
        assert a.inbox.await_(PeerSilent("b@1"), times=3)
        assert set(a.inbox.all) == {PeerSilent("b@1")}


def test_a_port_at_which_the_neighbour_never_answered_proves_nothing(free_port: int) -> None:
    """The neighbour dials us, but its own port is not the configured one, or is behind a firewall."""
    with local("here@1") as [here], remote("there@1") as [there]:
        here.network.watch([here.peer, Peer("there@1", "127.0.0.1", free_port)], 0)
        there.watch([here.peer, there.peer])
        assert eventually(lambda: here.network.healthy)
        there.signal(signal.SIGKILL)
        assert here.inbox.await_(PeerLinkLost("there@1"))
        assert here.inbox.await_(PeerSilent("there@1"), times=3)
        assert PeerRefused("there@1") not in here.inbox.all


def test_an_icmp_message_is_not_a_refusal(pair: tuple[Local, Remote], monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one is in test_sockets."""
    here, there = pair
    monkeypatch.setattr(sockets, "refused_by_kernel", lambda sock: False)
    there.signal(signal.SIGKILL)
    assert here.inbox.await_(PeerSilent("there@1"), times=3)
    assert PeerRefused("there@1") not in here.inbox.all


def test_a_partition_causes_silence_on_both_sides_until_it_ends() -> None:
    require(why_no_namespaces())
    with two_machines() as (one, other, cable):
        first = remote("a@1", address=cable.addresses[0], prefix=one.inside)
        second = remote("b@1", address=cable.addresses[1], prefix=other.inside)
        with first as [a], second as [b]:
            for it in (a, b):
                it.watch([a.peer, b.peer])
            assert eventually(lambda: a.healthy() and b.healthy())
            cable.cut()
            assert a.inbox.await_(PeerSilent("b@1"), times=8)
            assert b.inbox.await_(PeerSilent("a@1"), times=8)
            cable.heal()
            assert a.inbox.await_(PeerHeard("b@1"))
            assert b.inbox.await_(PeerHeard("a@1"))
            assert eventually(lambda: a.healthy() and b.healthy())
            assert PeerRefused("b@1") not in a.inbox.all and PeerRefused("a@1") not in b.inbox.all
            b.signal(signal.SIGKILL)
            assert a.inbox.await_(PeerRefused("b@1")), "its kernel still answers"


# Other processes


def test_garbage_ends_the_connection() -> None:
    with local("a@1") as [a]:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", encode(b"another", Message(Kind.HELLO, "b@1")), os.urandom(5000)):
            with socket.create_connection(("127.0.0.1", a.peer.port), TIMEOUT) as sock:
                sock.sendall(garbage)
                assert hung_up(sock)


def test_idle_connections_are_limited_and_have_no_effect() -> None:
    with local("a@1", "b@1") as [a, b]:
        crowd = [socket.create_connection(("127.0.0.1", a.peer.port), TIMEOUT) for _ in range(100)]
        assert hung_up(crowd[0]), "the first are closed in favour of the last"
        crowd[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            crowd[-1].recv(1)
        watch([a, b])
        assert all(hung_up(sock) for sock in crowd), "the last time out"
        assert a.network.healthy
        for sock in crowd:
            sock.close()


def test_a_peer_that_accepts_and_never_answers_is_silent() -> None:
    with local("a@1") as [a], socket.create_server(("127.0.0.1", 0)) as server:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", server.getsockname()[1])], 0)
        assert a.inbox.await_(PeerSilent("b@1"), times=2)
        assert set(a.inbox.all) == {PeerSilent("b@1")}


def test_another_agent_at_a_neighbours_port_does_not_replace_it() -> None:
    with local("a@1", "c@1") as [a, c]:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", c.peer.port)], 0)
        assert a.inbox.await_(PeerSilent("b@1"), times=2)
        assert not a.network.healthy
        assert set(a.inbox.all) == {PeerSilent("b@1")}


def test_a_neighbour_that_sends_garbage_is_disconnected() -> None:
    with local("a@1") as [a], socket.create_server(("127.0.0.1", 0)) as server:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", server.getsockname()[1])], 0)
        sock, _ = server.accept()
        with sock:
            session = Session(KEY, "b@1", os.urandom(NONCE))
            while not session.established:
                _, reply, sound = session.receive(sock.recv(4096))
                assert sound
                sock.sendall(reply)
            sock.sendall(session.heartbeat(3))
            assert a.inbox.take() == Notification(3)
            sock.sendall(b"nonsense")
            assert a.inbox.take() == PeerLinkLost("b@1")
            assert hung_up(sock)


def test_a_link_without_messages_times_out() -> None:
    """A half-open connection: the other machine has disappeared without a message."""
    with local("a@1") as [a], socket.create_server(("127.0.0.1", 0)) as server:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", server.getsockname()[1])], 0)
        sock, _ = server.accept()
        with sock:
            session = Session(KEY, "b@1", os.urandom(NONCE))
            while not session.established:
                sock.sendall(session.receive(sock.recv(4096))[1])
            assert eventually(lambda: a.network.healthy)
            assert a.inbox.take() == PeerSilent("b@1")
            assert a.inbox.await_(PeerLinkLost("b@1"))
            assert hung_up(sock)
            assert PeerRefused("b@1") not in a.inbox.all


def hung_up(sock: socket.socket) -> bool:
    """Wait until the other end closes the connection."""
    sock.settimeout(TIMEOUT)
    try:
        while sock.recv(4096):
            continue
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


# The network itself


def test_the_port_is_closed_with_its_last_holder(address: str) -> None:
    with local("a@1", address=address) as [a]:
        held = os.dup(a.network.presence.fileno())
        a.network.close()
        socket.create_connection((address, a.peer.port), TIMEOUT).close()
        os.close(held)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, a.peer.port), TIMEOUT)


def test_a_closed_network_leaves_no_thread_and_no_descriptor() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with local("a@1", "b@1") as found:
        watch(found)
        found[0].network.notify([Peer("c@1", "::1", 9)], 1)
        strangers = [socket.create_connection(("127.0.0.1", found[0].peer.port), TIMEOUT) for _ in range(3)]
    for sock in strangers:
        sock.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert "network" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("started", [True, False])
def test_calls_of_a_closed_network_have_no_effect(started: bool) -> None:
    network = Network(KEY, "a@1", "127.0.0.1", lambda news: None)
    if started:
        network.start()
    for _ in range(2):
        network.close()
        network.notify([Peer("b@1", "127.0.0.1", 9)], 1)
        network.watch([Peer("a@1", "127.0.0.1", 9)], 1)
    assert not network.healthy


def test_the_receiver_of_news_may_close_the_network() -> None:
    closed = threading.Event()

    def deliver(news: object) -> None:
        network.close()
        closed.set()

    network = Network(KEY, "a@1", "127.0.0.1", deliver)
    network.start()
    with local("b@1") as [b]:
        b.network.notify([Peer("a@1", "127.0.0.1", network.port)], 1)
        assert closed.wait(TIMEOUT)
        network._thread.join(TIMEOUT)
        assert not network._thread.is_alive() and network.presence.fileno() == -1


def test_an_invalid_address_is_ignored() -> None:
    with local("a@1", address="a-name") as [a], local("b@1") as [b]:
        b.network.notify([Peer("a@1", "127.0.0.1", a.peer.port)], 4)
        assert a.inbox.take() == Notification(4)


def test_an_id_that_is_too_long_is_refused_at_once() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="255 bytes"):
        Network(KEY, "x" * 256, "127.0.0.1", lambda news: None)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_without_descriptors_connections_wait() -> None:
    """In a separate process, because the limit is that of a process."""
    with local("here@1") as [here], remote("there@1") as [there]:
        there.limit(True)
        ring = [here.peer, there.peer]
        here.network.watch(ring, 0)
        assert here.inbox.await_(PeerSilent("there@1"), times=2)
        there.limit(False)
        assert here.inbox.await_(PeerHeard("there@1"))
        assert eventually(lambda: here.network.healthy)
        for version in (1, 2, 3):  # each is read at another tick, and the network continues
            here.network.watch(ring, version)
            assert there.inbox.await_(Notification(version))
        assert PeerRefused("there@1") not in here.inbox.all


# Many networks


def test_changes_of_rings_report_no_lost_links() -> None:
    """Agents read a new round in any order, some of them late. All links are made, and none is reported as lost."""
    draw = random.Random(7)
    with local(*(f"n{index}@1" for index in range(12))) as found:
        for version in range(12):
            members = draw.sample(found, draw.randint(2, len(found)))
            for it in draw.sample(found, len(found)):
                it.network.watch(near(it, members), version)
                if it in members and draw.random() < 0.2:
                    assert eventually(lambda it=it: it.network._new_neighbours is None)  # type: ignore[misc]  # mypy: no default
            for it in members:
                nodes = {peer.node for peer in near(it, members)}
                assert eventually(lambda it=it, nodes=nodes: set(it.network._links._neighbours) == nodes)  # type: ignore[misc]
                assert eventually(lambda it=it: it.network.healthy)  # type: ignore[misc]
        for it in found:
            it.inbox.drain()
            assert all(isinstance(news, Notification) for news in it.inbox.all)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_the_owner_does_not_close_the_port() -> None:
    """Otherwise neighbours would take the agent for dead, although it is alive."""

    def deliver(news: object) -> None:
        raise RuntimeError("a mistake")

    network = Network(KEY, "a@1", "127.0.0.1", deliver)
    network.start()
    with local("b@1") as [b]:
        b.network.notify([Peer("a@1", "127.0.0.1", network.port)], 1)
        network._thread.join(TIMEOUT)
        assert not network._thread.is_alive() and not network.healthy
        socket.create_connection(("127.0.0.1", network.port), TIMEOUT).close()
        network.close()
        assert network.presence.fileno() == -1
