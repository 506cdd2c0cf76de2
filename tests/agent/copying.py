"""Agents with snapshots and networks, in this process."""

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from hpcelastic.agent.kept_snapshots import Kept, KeptSnapshots
from hpcelastic.agent.snapshot_copies import SnapshotCopies
from hpcelastic.ipc.worker_channel import Snapshot
from hpcelastic.network import Network, Peer, Transfer, transfer
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.seals import SEAL_LENGTH
from tests.agent.processes import TIMEOUT, eventually
from tests.network.agents import KEY
from tests.protocol.builders import settings

SIZE = 300_000
DIRECTORY = "/checkpoints"
NAME = CheckpointName(2, 7, parts=3)


def shared_memory(content: bytes) -> int:
    """Return a descriptor of memory as a worker shares it with its agent."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


class Agent:
    """The snapshots and the network of an agent."""

    def __init__(self, node: str) -> None:
        self.node, self.dials = node, 0
        self.reports: list[str] = []
        self.kept = KeptSnapshots()
        self.network = Network(KEY, node, "127.0.0.1", lambda news: None, lambda started: self.serve(started))
        self.peer = Peer(node, "127.0.0.1", self.network.port)
        self.copies = SnapshotCopies(node, self.kept, self.dial, self.reports.append)
        self.serve: Callable[[Transfer], object] = self.copies.accept
        """Called with each transfer that another agent has started."""

    def dial(self, peer: Peer) -> Transfer:
        self.dials += 1
        return self.network.dial(peer, 0)

    def take(self, name: CheckpointName = NAME, data: bytes | None = None) -> bytes:
        """Keep a sealed snapshot of a worker. Return its content."""
        data = os.urandom(SIZE) if data is None else data
        fd = shared_memory(data + bytes(SEAL_LENGTH))
        made = Kept(description(name, len(data)), name, fd, slot=name)
        self.kept.add(made)
        assert self.kept.seal(made)
        return data

    def content(self, name: CheckpointName = NAME) -> bytes | None:
        """Return the content of a snapshot that is here and whole; None if it is not here."""
        found = self.kept.open(DIRECTORY, name)
        return None if found is None else content(found)

    def damage(self, name: CheckpointName = NAME) -> None:
        """Change one byte of a snapshot."""
        found = self.kept.open(DIRECTORY, name)
        assert found is not None
        with found, mmap.mmap(found.fd, found.size) as view:
            view[SIZE // 2] ^= 1

    def names(self) -> list[CheckpointName]:
        return self.kept.names(DIRECTORY)

    def ask(self, other: "Agent", request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to another agent, and return its answer."""
        with self.dial(other.peer) as end:
            end.send(request)
            return end.receive()


def description(name: CheckpointName, size: int = SIZE) -> Snapshot:
    return Snapshot(0, 0, name.round, name.step, size, DIRECTORY, str(name), {})


def content(found: Kept) -> bytes:
    with found, found.view() as view:
        assert found.is_whole()
        return bytes(view[: found.snapshot.size])


def begin_round(*agents: Agent, round: int = 2) -> None:
    members = tuple(Participant(each.node, 1, each.peer.address, 1, each.peer.port) for each in agents)
    for each in agents:
        each.copies.observe(State("r", settings(), Phase.RUNNING, round, members))


def descriptors() -> int:
    """Return the number of open descriptors. Those of earlier tests that are not collected yet may disappear later."""
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def three_agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agent]]:
    """Three agents in a round. No descriptor is left at the end, and no thread has ended with an error."""
    monkeypatch.setattr(transfer, "CHUNK", 2**16)
    monkeypatch.setattr(transfer, "TIMEOUT", TIMEOUT)
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    before = descriptors()
    with ExitStack() as stack:
        made = []
        for node in ("n1@a", "n2@b", "n3@c"):
            agent = Agent(node)
            stack.callback(agent.kept.close)
            stack.callback(agent.network.close)
            agent.network.start()
            made.append(agent)
        begin_round(*made)
        yield made
    assert eventually(lambda: descriptors() <= before)
    assert errors == []


def nothing_changed(agent: Agent, before: int) -> bool:
    """Return whether an agent has kept nothing, and has closed all that it has opened since."""
    return agent.names() == [] and eventually(lambda: descriptors() <= before)
