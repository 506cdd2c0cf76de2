"""Agents send copies of snapshots to each other."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hpcelastic.agent.kept_snapshots import Kept, KeptSnapshots
from hpcelastic.agent.snapshot_copies import SnapshotCopies
from hpcelastic.network import Peer, Transfer, transfer
from hpcelastic.training import memory
from hpcelastic.training.memory import AvailableMemory
from hpcelastic.training.seals import SEAL_LENGTH
from tests.agent.copying import (
    DIRECTORY,
    NAME,
    SIZE,
    Agent,
    begin_round,
    description,
    descriptors,
    nothing_changed,
    shared_memory,
    three_agents,
)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agent]]:
    with three_agents(monkeypatch) as made:
        yield made


def test_the_next_node_has_a_copy(agents: list[Agent]) -> None:
    first, second, third = agents
    data = first.take()
    assert first.copies.send(DIRECTORY, NAME) == second.node
    assert (second.content(), third.content()) == (data, None)
    assert third.take(NAME._replace(part=2)) and third.copies.send(DIRECTORY, NAME._replace(part=2)) == first.node
    assert first.names() == [NAME, NAME._replace(part=2)]
    assert [agent.reports for agent in agents] == [[], [], []]


def test_an_empty_snapshot_has_a_copy(agents: list[Agent]) -> None:
    first, second, _ = agents
    first.take(data=b"")
    assert first.copies.send(DIRECTORY, NAME) == second.node
    assert second.content() == b""


def test_only_sealed_snapshots_have_copies(agents: list[Agent]) -> None:
    first, second, _ = agents
    fd = shared_memory(bytes(SIZE + SEAL_LENGTH))
    first.kept.add(Kept(description(NAME), NAME, fd, slot=0))
    assert first.copies.send(DIRECTORY, NAME) == ""
    assert (first.dials, second.names()) == (0, [])


def test_a_node_alone_has_no_copies(agents: list[Agent]) -> None:
    first, *_ = agents
    begin_round(first, round=3)
    first.take()
    assert first.copies.send(DIRECTORY, NAME) == ""
    assert (first.dials, first.reports) == (0, [])


def test_a_node_that_has_left_the_round_gets_no_copies(agents: list[Agent]) -> None:
    first, second, third = agents
    begin_round(first, third, round=3)
    data = first.take()
    assert first.copies.send(DIRECTORY, NAME) == third.node
    assert (second.content(), third.content()) == (None, data)


def refusal(agents: list[Agent]) -> str:
    """Let the first agent send twice in a round, and again in the next. Return the reason for which it failed."""
    first, *_ = agents
    first.take()
    assert [first.copies.send(DIRECTORY, NAME) for _ in range(2)] == ["", ""]
    (report,) = first.reports
    begin_round(*agents, round=3)
    assert first.copies.send(DIRECTORY, NAME) == ""
    assert len(first.reports) == 2
    what, _, reason = report.partition("n2 has no copy: ")
    assert what == "snapshots are in the memory of this node only; "
    return reason


def test_a_damaged_snapshot_is_refused(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = agents
    seal = KeptSnapshots.seal

    def seal_and_damage(kept: KeptSnapshots, which: Kept) -> bool:
        sealed = seal(kept, which)
        first.damage()
        return sealed

    monkeypatch.setattr(KeptSnapshots, "seal", seal_and_damage)
    assert refusal(agents) == "it is damaged"
    assert second.names() == []


def test_a_lack_of_memory_is_reported(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: AvailableMemory(SIZE, "this machine"))
    assert refusal(agents) == "it needs 0 MiB of memory, and 0 MiB are free in this machine"
    assert agents[1].names() == []


def test_a_node_that_is_gone_is_reported(agents: list[Agent]) -> None:
    agents[1].network.close()
    assert refusal(agents).endswith("Connection refused")


def test_a_node_that_hangs_is_reported(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel accepts the connection."""
    monkeypatch.setattr(transfer, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agents[1].peer = Peer(agents[1].node, "127.0.0.1", silent.getsockname()[1])
        begin_round(*agents, round=1)
        assert refusal(agents).endswith("timed out")


def test_a_node_that_hangs_in_the_middle_is_reported(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Transfer] = []
    agents[1].serve = held.append
    sent = threading.local()
    receive = Transfer.receive

    def timed_out(end: Transfer, busy: float = 0.0) -> dict[str, Any]:
        """Wait for the first header, by which the other end is ready, as long as it takes."""
        hangs = end.peer == agents[1].node and getattr(sent, "ready", None) is end
        sent.ready = end
        return receive(end, 0.05 - transfer.TIMEOUT if hangs else busy)

    monkeypatch.setattr(Transfer, "receive", timed_out)
    assert refusal(agents).endswith("timed out")
    assert len(held) == 3
    for end in held:
        end.close()


def test_without_a_network_there_are_no_copies(agents: list[Agent]) -> None:
    agents[0].copies = SnapshotCopies(agents[0].node, agents[0].kept, None, agents[0].reports.append)
    begin_round(*agents)
    assert refusal(agents) == "agents do not use the network; see network.notifications"


def test_a_copy_of_an_older_round_is_refused(agents: list[Agent]) -> None:
    """Its step is higher."""
    first, second, _ = agents
    newer = [NAME._replace(round=3, step=step, part=1) for step in (1, 2)]
    for name in newer:
        second.take(name)
    first.take(NAME._replace(step=900))
    assert first.copies.send(DIRECTORY, NAME._replace(step=900)) == ""
    assert first.reports[0].endswith("n2 has no copy: there are newer snapshots")
    assert second.names() == newer


def test_a_sender_that_dies_leaves_nothing(agents: list[Agent]) -> None:
    first, second, _ = agents
    before = descriptors()
    for sends in ([], [None], [memoryview(bytes(2**16))], [memoryview(bytes(SIZE + SEAL_LENGTH - 1))]):
        with first.dial(second.peer) as end:
            end.send({"keep": vars(description(NAME))})
            assert end.receive() == {}
            for each in sends:
                end.send({}, each)
        assert nothing_changed(second, before)


def test_a_receiver_that_dies_is_reported(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies in the middle of the data, which the buffers of the kernel cannot hold."""
    first, second, _ = agents

    def serve(end: Transfer) -> None:
        with end:
            assert "keep" in end.receive()
            end.send({})
            end.receive()
            end.receive_into(memoryview(bytearray(2**16)))

    second.serve = lambda end: threading.Thread(target=serve, args=(end,)).start()
    first.take(data=bytes(2**25))
    before = descriptors()
    assert first.copies.send(DIRECTORY, NAME) == ""
    (report,) = first.reports
    assert "n2 has no copy: n2@b at 127.0.0.1:" in report
    assert nothing_changed(second, before)
