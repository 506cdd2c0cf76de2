import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcelastic.network import Network, Peer, PeerSilent, Transfer, TransferError, dial, sockets, transfer
from hpcelastic.network.channel import Session
from hpcelastic.network.connection import Connection
from hpcelastic.network.messages import NONCE
from tests.agent.processes import TIMEOUT, eventually
from tests.network.agents import KEY, Local, local

CHUNK = 64
DATA = bytes(range(256))[: 3 * CHUNK - 5]
PAIR = r"b@1 at 127\.0\.0\.1:\d+: "


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data have several chunks, and a busy machine is no failure."""
    monkeypatch.setattr(transfer, "CHUNK", CHUNK)
    monkeypatch.setattr(transfer, "TIMEOUT", TIMEOUT)


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname(), TIMEOUT)
        other, _ = server.accept()
    for sock in (one, other):
        sockets.configure(sock)
        sock.settimeout(TIMEOUT)
    with one, other:
        yield one, other


@contextlib.contextmanager
def both_ends() -> Iterator[tuple[Transfer, Transfer]]:
    with connected() as (one, other):
        responder = Transfer(other, KEY, "a@1", initiator=False)
        with responder, Transfer(one, KEY, "b@1", initiator=True) as initiator:
            yield initiator, responder


def sent(send: Callable[[Transfer], None], key: bytes = KEY) -> list[bytes]:
    """Return the frames of a responder."""
    with connected() as (one, other), one.makefile("rb") as stream:
        with Transfer(other, key, "a@1", initiator=False) as responder:
            send(responder)
        frames = []
        while head := stream.read(5):
            frames.append(head + stream.read(struct.unpack("!BI", head)[1] + 16))
        return frames


def received(stream: bytes, receive: Callable[[Transfer], Any]) -> Any:
    """Return what an initiator receives from ``stream``, after which the connection ends."""
    with connected() as (one, other):
        other.sendall(stream)
        other.shutdown(socket.SHUT_WR)
        with Transfer(one, KEY, "b@1", initiator=True) as initiator:
            return receive(initiator)


def receive_both(end: Transfer) -> tuple[dict[str, Any], bytes]:
    header = end.receive()
    memory = bytearray(len(DATA))
    end.receive_into(memoryview(memory))
    return header, bytes(memory)


def whole() -> list[bytes]:
    """Return the frames of a transfer: the responder is ready, a header, and three chunks of data."""
    return sent(lambda end: end.send({"step": 7}, memoryview(DATA)))


# Contents


def test_headers_and_data_arrive_both_ways() -> None:
    with both_ends() as (initiator, responder):
        for one, other in ((initiator, responder), (responder, initiator)):
            one.send({"step": 7}, memoryview(DATA))
            assert receive_both(other) == ({"step": 7}, DATA)
        initiator.send({})
        assert responder.receive() == {}


def test_data_of_real_size_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 2**20)
    data, memory = os.urandom(9 * 2**20 + 1), bytearray(9 * 2**20 + 1)
    with both_ends() as (initiator, responder):
        sender = threading.Thread(target=initiator.send, args=({}, memoryview(data)))
        sender.start()
        responder.receive()
        responder.receive_into(memoryview(memory))
        sender.join()
    assert memory == data


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
pieces = st.tuples(st.dictionaries(st.text(max_size=9), values, max_size=3), st.none() | st.binary(max_size=4 * CHUNK))


@given(st.lists(pieces, max_size=5))
def test_any_sequence_arrives_as_sent(sequence: list[tuple[dict[str, Any], bytes | None]]) -> None:
    with both_ends() as (initiator, responder):
        for header, data in sequence:
            initiator.send(header, None if data is None else memoryview(data))
        for header, data in sequence:
            assert responder.receive() == header
            memory = bytearray(len(data or b""))
            responder.receive_into(memoryview(memory))
            assert memory == (data or b"")


# Forged and damaged frames


@given(st.data())
def test_a_changed_byte_is_refused(data: st.DataObject) -> None:
    stream = bytearray(b"".join(whole()))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TransferError, match=PAIR):
        received(bytes(stream), receive_both)


def flipped(frame: bytes, index: int) -> bytes:
    changed = bytearray(frame)
    changed[index] ^= 1
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, bytes, bytes, bytes, bytes], list[bytes]]] = {
    "a bit of the header": lambda ready, header, a, b, c: [ready, flipped(header, 7), a, b, c],
    "a bit of the data": lambda ready, header, a, b, c: [ready, header, a, flipped(b, 20), c],
    "a bit of the last data": lambda ready, header, a, b, c: [ready, header, a, b, flipped(c, 20)],
    "a bit of the header's tag": lambda ready, header, a, b, c: [ready, flipped(header, -1), a, b, c],
    "a bit of the data's tag": lambda ready, header, a, b, c: [ready, header, flipped(a, -16), b, c],
    "the kind of a frame": lambda ready, header, a, b, c: [ready, header, a, flipped(b, 0), c],
    "swapped chunks": lambda ready, header, a, b, c: [ready, header, b, a, c],
    "a repeated chunk": lambda ready, header, a, b, c: [ready, header, a, a, c],
    "a chunk left out": lambda ready, header, a, b, c: [ready, header, b, c],
    "a repeated header": lambda ready, header, a, b, c: [ready, header, header, a, b, c],
    "a header left out": lambda ready, header, a, b, c: [ready, a, b, c],
    "the first frame twice": lambda ready, header, a, b, c: [ready, ready, a, b, c],
    "not ready": lambda ready, header, a, b, c: [header, a, b, c],
    "an early end": lambda ready, header, a, b, c: [ready, header, a, b, c[:-1]],
    "an end between frames": lambda ready, header, a, b, c: [ready, header, a, b],
    "a frame of another transfer": lambda ready, header, a, b, c: [
        ready,
        sent(lambda end: end.send({"step": 7}), b"another")[1],
        a,
        b,
        c,
    ],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_refused(damage: Callable[..., list[bytes]]) -> None:
    frames = whole()
    assert received(b"".join(frames), receive_both) == ({"step": 7}, DATA)
    with pytest.raises(TransferError, match=PAIR):
        received(b"".join(damage(*frames)), receive_both)


def test_a_frame_that_is_sent_back_is_refused() -> None:
    with connected() as (one, other), Transfer(other, KEY, "b@1", initiator=False) as responder:
        one.sendall(one.recv(100))
        with pytest.raises(TransferError, match=PAIR + "sent a frame that is not authentic"):
            responder.receive()


def test_a_header_may_not_exceed_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = {"x": "y" * (transfer.MAX_HEADER - 9)}
    with both_ends() as (initiator, responder):
        initiator.send(largest)
        with pytest.raises(ValueError, match=r"has 65537 bytes; at most 65536"):
            initiator.send({"x": largest["x"] + "y"})
        assert responder.receive() == largest, "nothing of the other header was sent"
        with monkeypatch.context() as other_release:
            other_release.setattr(transfer, "MAX_HEADER", 2**20)
            initiator.send({"x": largest["x"] + "y"})
        with pytest.raises(TransferError, match="sent something else than a header"):
            responder.receive()


@pytest.mark.parametrize("text", [b"[]", b"{", b"", b"\xff", b"null"])
def test_a_header_is_a_json_object(text: bytes) -> None:
    with both_ends() as (initiator, responder):
        initiator._send_frame(transfer._HEADER, memoryview(text))
        with pytest.raises(TransferError, match=r"a@1 at 127\.0\.0\.1:\d+: "):
            responder.receive()


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1, CHUNK])
def test_data_of_another_size_are_refused(size: int) -> None:
    with both_ends() as (initiator, responder):
        initiator.send({}, memoryview(DATA))
        initiator.send({})
        responder.receive()
        with pytest.raises(TransferError, match="sent something else than"):
            responder.receive_into(memoryview(bytearray(size)))
            responder.receive()


def test_a_header_is_not_data_and_data_are_no_header() -> None:
    with both_ends() as (initiator, responder):
        initiator.send({})
        with pytest.raises(TransferError, match="sent something else than the data of the announced size"):
            responder.receive_into(memoryview(bytearray(2)))
    with both_ends() as (initiator, responder):
        initiator.send({}, memoryview(DATA))
        responder.receive()
        with pytest.raises(TransferError, match="sent something else than a header"):
            responder.receive()


# Ends and time-outs


def test_a_peer_that_closes_is_reported() -> None:
    with both_ends() as (initiator, responder):
        initiator.send({"last": True})
        initiator.close()
        assert responder.receive() == {"last": True}
        with pytest.raises(TransferError, match=r"a@1 at 127\.0\.0\.1:\d+: closed the connection"):
            responder.receive()
        with pytest.raises(TransferError, match="b@1"):
            initiator.send({})


def test_a_failed_end_is_closed() -> None:
    with both_ends() as (initiator, responder):
        initiator.send({}, memoryview(DATA))
        with pytest.raises(TransferError):
            responder.receive_into(memoryview(bytearray(1)))
        with pytest.raises(TransferError, match="b@1"):
            initiator.receive()


def test_a_reset_is_reported() -> None:
    with connected() as (one, other), Transfer(other, KEY, "b@1", initiator=False) as responder:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        with pytest.raises(TransferError, match=PAIR + "Connection reset by peer"):
            responder.receive()


def test_a_silent_peer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.05)
    with both_ends() as (_, responder), pytest.raises(TransferError, match="timed out"):
        responder.receive()


def test_a_peer_that_does_not_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.05)
    monkeypatch.setattr(transfer, "CHUNK", 2**20)
    with both_ends() as (_, responder), pytest.raises(TransferError, match="timed out"):
        responder.send({}, memoryview(bytes(64 * 2**20)))


def test_the_rate_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 2**20)
    rate, data = 8 * 2**20, bytearray(4 * 2**20)
    with both_ends() as (initiator, responder):
        initiator.limit(rate)
        sender = threading.Thread(target=initiator.send, args=({}, memoryview(data)))
        began = time.monotonic()
        sender.start()
        responder.receive()
        responder.receive_into(memoryview(data))
        sender.join()
        assert time.monotonic() - began > len(data) / rate / 2, "the kernel does not pace the first packets"
        initiator.limit(0)
        assert initiator._sock.getsockopt(socket.SOL_SOCKET, 47, 8) == b"\xff" * 8


# Agents


def start(here: Local, there: Local, rate: int = 0) -> tuple[Transfer, Transfer]:
    initiator = dial(KEY, here.peer.node, there.peer, rate)
    return initiator, there.transfers.get(timeout=TIMEOUT)


def send_whole(initiator: Transfer, responder: Transfer) -> None:
    with initiator, responder:
        initiator.send({"step": 7}, memoryview(DATA))
        assert receive_both(responder) == ({"step": 7}, DATA)
        responder.send({"stored": True})
        assert initiator.receive() == {"stored": True}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_agent_receives_the_transfers_of_others(address: str) -> None:
    with local("a@1", "b@1", address=address) as [a, b]:
        initiator, responder = start(a, b, rate=2**30)
        assert (initiator.peer, responder.peer) == ("b@1", "a@1")
        send_whole(initiator, responder)
        initiator, responder = start(a, b)
        where = f"[{address}]" if ":" in address else address
        with responder, initiator:
            responder.close()
            with pytest.raises(TransferError) as error:
                initiator.receive()
            assert str(error.value) == f"b@1 at {where}:{b.peer.port}: closed the connection"


def links(*ends: Local) -> list[Connection]:
    neighbours = [it for end in ends for it in list(end.network._links._neighbours.values())]
    return [it.link for it in neighbours if it.link]


def test_links_are_not_affected() -> None:
    with local("a@1", "b@1") as [a, b]:
        for it in (a, b):
            it.network.watch([a.peer, b.peer], 0)
        assert eventually(lambda: [it.session.initiator for it in links(a, b)] == ["a@1", "a@1"]), "both have dialled"
        before = links(a, b)
        for here, there in ((a, b), (b, a)):
            send_whole(*start(here, there))
        assert links(a, b) == before
        assert a.network.healthy and b.network.healthy
        assert a.inbox.take(0.0) is b.inbox.take(0.0) is None


def test_a_transfer_is_no_link() -> None:
    with local("a@1") as [a], socket.create_server(("127.0.0.1", 0)) as silent:
        a.network.watch([a.peer, Peer("b@1", "127.0.0.1", silent.getsockname()[1])], 0)
        initiator = dial(KEY, "b@1", a.peer, 0)
        send_whole(initiator, a.transfers.get(timeout=TIMEOUT))
        assert not a.network._links._neighbours["b@1"].link and not a.network.healthy
        a.inbox.drain()
        assert set(a.inbox.all) <= {PeerSilent("b@1")}, "the machine may be slow"


def test_a_link_cannot_become_a_transfer() -> None:
    with local("a@1") as [a], socket.create_connection(("127.0.0.1", a.peer.port), TIMEOUT) as sock:
        session = Session(KEY, "b@1", bytes(NONCE), "a@1")
        sock.sendall(session.hello())
        while not session.established:
            session.receive(sock.recv(100))
        sock.sendall(session.heartbeat(0) + session.transfer())
        while sock.recv(100):
            pass
        assert a.transfers.empty()


def test_many_transfers_run_at_once() -> None:
    with local("a@1", *(f"b{index}@1" for index in range(4))) as [a, *others]:
        failures: queue.Queue[BaseException] = queue.Queue()

        def send(it: Local) -> None:
            try:
                with dial(KEY, it.peer.node, a.peer, 0) as end:
                    end.send({"node": it.peer.node}, memoryview(DATA))
                    assert end.receive() == {"node": it.peer.node}
            except BaseException as error:
                failures.put(error)

        threads = [threading.Thread(target=send, args=(it,)) for it in others for _ in range(5)]
        for thread in threads:
            thread.start()
        ends = [a.transfers.get(timeout=TIMEOUT) for _ in threads]
        for end in reversed(ends):
            with end:
                header, data = receive_both(end)
                assert (header["node"], data) == (end.peer, DATA)
                end.send(header)
        for thread in threads:
            thread.join()
        assert failures.empty(), failures.get()


def test_an_agent_without_transfers_closes_the_connection() -> None:
    network = Network(KEY, "a@1", "127.0.0.1", lambda news: None)
    network.start()
    try:
        with pytest.raises(TransferError, match=r"^a@1 at 127\.0\.0\.1:\d+: closed the connection$"):
            dial(KEY, "b@1", Peer("a@1", "127.0.0.1", network.port), 0)
    finally:
        network.close()


def test_another_key_is_refused() -> None:
    with local("a@1") as [a], pytest.raises(TransferError, match=r"a@1 at .*: (closed the|Connection reset)"):
        dial(b"another", "b@1", a.peer, 0)


def test_another_agent_at_the_port_is_refused() -> None:
    with local("a@1") as [a], pytest.raises(TransferError, match=r"c@1 at .*: is another agent, or has another key"):
        dial(KEY, "b@1", Peer("c@1", "127.0.0.1", a.peer.port), 0)


def test_a_peer_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TransferError, match=rf"^a@1 at 127\.0\.0\.1:{port}: timed out$"):
            dial(KEY, "b@1", Peer("a@1", "127.0.0.1", port), 0)


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (Peer("a@1", "127.0.0.1", 1), r"^a@1 at 127\.0\.0\.1:1: Connection refused$"),
        (Peer("a@1", "localhost", 9), r"^a@1 at localhost:9: is not an address and a port$"),
        (Peer("a@1", "::1", 0), r"^a@1 at \[::1\]:0: is not an address and a port$"),
    ],
    ids=["no process", "a name", "no port"],
)
def test_a_peer_that_cannot_be_reached_is_reported(peer: Peer, message: str) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(TransferError, match=message):
        dial(KEY, "b@1", peer, 0)
    assert set(os.listdir("/proc/self/fd")) <= set(before)
