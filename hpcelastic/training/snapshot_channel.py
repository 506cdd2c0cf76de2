"""Snapshots: a worker copies its state to memory, and its agent keeps it, copies it to another node, and publishes it.

The memory belongs to both processes, so the state survives the worker. A snapshot that shall be published, and has not
been begun when a newer one arrives, is left out.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from hpcelastic.ipc.readiness import readable
from hpcelastic.ipc.worker_channel import (
    AwaitSnapshots,
    DropSnapshot,
    FetchedSnapshot,
    FetchSnapshot,
    KeepOnly,
    ListSnapshots,
    Message,
    NoSnapshots,
    Snapshot,
    SnapshotDone,
    SnapshotKept,
    SnapshotList,
    WorkerChannel,
)

from .archive import Archive
from .context import local_index
from .retention import CheckpointName, Retention
from .seals import SEAL_LENGTH
from .slots import Slot, Slots
from .token import check_token

log = logging.getLogger(__name__)

_CHANNEL_VARIABLE = "HPCELASTIC_SNAPSHOT_CHANNEL"
_AGENT_TIMEOUT = 5.0
"""Seconds for which a save waits for an agent that does not give a slot back, or does not answer."""

_PUBLICATION_TIMEOUT = 60.0
"""Seconds for which a process that looks for checkpoints waits for the agent to publish what it has."""

_REPORT_DELAY = 2.0
_NO_ANSWER = "the agent does not answer"


class SnapshotChannel:
    """The snapshots of this process, and its requests to its agent about them."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel, self._slots = channel, Slots()
        self._connected = True
        self._known_types: frozenset[object] = frozenset()
        """Classes and functions in states that can be loaded."""

        self._newest_to_publish: Slot | None = None
        self._newest_published = True
        """Whether the newest snapshot that the agent shall publish is published."""

        self._request = 0
        """The number of the last request. The answer to an earlier one may come too late."""

        self._answer: tuple[Message, list[int]] | None = None
        """The answer to the last request."""

    def prepare(self, archive: Archive) -> Slot | str:
        """Return memory for a snapshot, or the reason why there is none.

        Raises ``StoreError`` if this process must not act for the run any more.
        """
        check_token()
        self._receive(0.0)
        if self._connected and not self._slots.has_room():  # the agent has not read the last messages yet
            self._receive_until(self._slots.has_room, _AGENT_TIMEOUT)
        if not self._connected:
            return _NO_ANSWER
        if not self._slots.has_room():
            return f"the agent has not answered for {_AGENT_TIMEOUT:g} s"
        return self._slots.take(archive.size + SEAL_LENGTH)

    def save(
        self,
        archive: Archive,
        slot: Slot,
        directory: Path,
        name: CheckpointName,
        retention: Retention,
        *,
        publish: bool,
        copy: bool,
    ) -> str | None:
        """Hand over a state in memory that `prepare` has returned. Return None, or the reason if it is not possible.

        Raises the errors of pickle if the state could not be loaded again.
        """
        if slot.used and not self._channel.send(DropSnapshot(slot.number)):
            return _NO_ANSWER
        archive.copy_to(slot.memory)
        if not archive.types <= self._known_types:
            archive.check(slot.memory)
            self._known_types |= archive.types
        message = Snapshot(
            slot=slot.number,
            local_rank=local_index(),
            round=name.round,
            step=name.step,
            size=archive.size,
            directory=_absolute(directory),
            file=str(name),
            retention=asdict(retention),
            publish=publish,
            copy=copy,
        )
        if not self._channel.send(message, [slot.fd]):
            return _NO_ANSWER
        slot.used, slot.step, slot.published = True, name.step, not publish
        slot.copied = slot.kept = False
        self._slots.newest = slot
        if publish:
            self._newest_to_publish, self._newest_published = slot, False
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the agent has published each snapshot, or given it up. Return whether the newest is published.

        Return False after ``timeout`` seconds.
        """
        self._receive_until(lambda: not self._slots.is_publishing(), timeout)
        return self._newest_published and not (self._connected and self._slots.is_publishing())

    def is_saving(self) -> bool:
        """Return whether the agent has yet to publish a snapshot."""
        self._receive(0.0)
        return self._connected and self._slots.is_publishing()

    def is_copying(self) -> bool:
        """Return whether the agent has yet to seal the newest snapshot, or to send a copy to another node."""
        self._receive(0.0)
        return self._connected and self._slots.is_copying()

    def is_kept(self, timeout: float = 0.0) -> bool:
        """Return whether the newest snapshot is sealed, and the agent has tried to send a copy to another node.

        Wait for this up to ``timeout`` seconds. Return False if the agent does not keep it.
        """
        self._receive_until(lambda: not self._slots.is_copying(), timeout)
        return self._slots.newest_is_kept()

    def await_agent(self) -> None:
        """Wait until the agent has published what earlier processes of this node have saved, but not too long.

        Before that, a process that looks for checkpoints would shut these out.
        """
        if not self._connected or not self._channel.send(AwaitSnapshots(self._new_request())):
            return
        began, reported = time.monotonic(), False
        while self._connected and self._answer is None:
            waited = time.monotonic() - began
            if waited > _PUBLICATION_TIMEOUT:
                log.warning("the agent has not published an earlier checkpoint for %.0f s; going on without it", waited)
                return
            if waited > _REPORT_DELAY and not reported:
                reported = True
                log.warning("waiting for the agent to publish an earlier checkpoint")
            self._receive(_REPORT_DELAY)

    # Snapshots that the agent has

    def kept(self, directory: Path) -> SnapshotList | None:
        """Return the node of the agent, and the snapshots of a directory that it has; None if it does not answer."""
        answer, _ = self._ask(ListSnapshots(_absolute(directory), self._new_request()), _AGENT_TIMEOUT)
        return answer if isinstance(answer, SnapshotList) else None

    def fetch(self, directory: Path, name: CheckpointName, node: str) -> int:
        """Return a descriptor of the memory of a snapshot that the agent of ``node`` has, for the caller to close.

        Raises OSError if that is not possible.
        """
        message = FetchSnapshot(_absolute(directory), str(name), node, self._new_request())
        answer, fds = self._ask(message, None)
        if not isinstance(answer, FetchedSnapshot) or not fds:
            raise OSError(answer.error if isinstance(answer, FetchedSnapshot) else _NO_ANSWER)
        return fds[0]

    def keep_only(self, directory: Path, name: CheckpointName | None) -> None:
        """Let the agent drop all snapshots of a directory but those of a checkpoint; all of them for None."""
        self._channel.send(KeepOnly(_absolute(directory), "" if name is None else str(name)))

    def _new_request(self) -> int:
        """Return the number of a request that follows. From now on, only its answer counts."""
        self._request += 1
        if self._answer is not None:
            _, fds = self._answer  # the end of the round has interrupted the last request
            self._answer = None
            _close(fds)
        return self._request

    def _ask(self, message: Message, timeout: float | None) -> tuple[Message | None, list[int]]:
        """Return the agent's answer, and the descriptors that were sent with it; None if it does not answer."""
        if self._connected and self._channel.send(message):
            self._receive_until(lambda: self._answer is not None, timeout)
        answer, self._answer = self._answer, None
        return answer or (None, [])

    # Messages of the agent

    def _receive_until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Read the agent's messages until ``condition`` is true, for up to ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._receive(0.0)
        while self._connected and not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._receive(left)

    def _receive(self, timeout: float | None) -> None:
        """Read the agent's messages; wait for the first up to ``timeout`` seconds."""
        while self._connected and readable([self._channel], timeout):
            received = self._channel.receive(wait=True)
            if received is None:
                self._connected = False
                return
            message, fds = received
            if isinstance(message, (SnapshotDone, SnapshotKept)):
                self._slot_changed(message)
            elif self._is_answer(message) and self._answer is None:
                self._answer = received
            else:
                _close(fds)
            timeout = 0.0

    def _is_answer(self, message: Message) -> bool:
        """Return whether a message answers the last request."""
        return isinstance(message, (NoSnapshots, SnapshotList, FetchedSnapshot)) and message.request == self._request

    def _slot_changed(self, message: SnapshotDone | SnapshotKept) -> None:
        slot = self._slots.get(message.slot)
        if slot is None:
            return
        if isinstance(message, SnapshotKept):
            if message.step == slot.step:  # not an older one in the same memory
                slot.copied, slot.kept = True, not message.error
            return
        slot.published = True
        if slot is self._newest_to_publish:
            self._newest_published = not message.error


@cache
def snapshot_channel() -> SnapshotChannel | None:
    """Return the channel of this process to its agent for snapshots; None if it has no agent that keeps them."""
    name = os.environ.get(_CHANNEL_VARIABLE)
    if not name:
        return None
    try:
        return SnapshotChannel(WorkerChannel.connect(name))
    except OSError as error:
        log.warning("checkpoints are not saved in the background: %s", error)
        return None


def _absolute(directory: Path) -> str:
    return str(directory.absolute())


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
