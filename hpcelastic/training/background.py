"""Saves in the background: a worker copies its state to memory, and its agent publishes it as a checkpoint.

The memory belongs to both processes, so the agent publishes the state also if the worker dies meanwhile. A worker uses
up to three such *slots*: one that the agent is writing to the disk, the newest one, and one for the next save. A
snapshot that has not been begun when a newer one arrives is left out.
"""

import contextlib
import logging
import mmap
import os
import select
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcelastic.ipc.worker_channel import AwaitSnapshots, NoSnapshots, Snapshot, SnapshotDone, WorkerChannel

from .archive import Archive
from .checkpoint_files import SEAL_LENGTH
from .context import local_index
from .memory import available_memory
from .retention import CheckpointName, Retention
from .token import check_token

log = logging.getLogger(__name__)

_CHANNEL_VARIABLE = "HPCELASTIC_SNAPSHOT_CHANNEL"
_SLOTS = 3
_AGENT_TIMEOUT = 5.0
"""Seconds for which a save waits for an agent that does not give a slot back."""

_PUBLICATION_TIMEOUT = 60.0
"""Seconds for which a process that looks for checkpoints waits for the agent to publish what it has."""

_REPORT_DELAY = 2.0
_SPARE_MEMORY = 0.05
"""The part of the memory that a slot leaves free."""


@dataclass
class _Slot:
    """Memory for one snapshot."""

    number: int
    fd: int
    memory: mmap.mmap
    done: bool = True
    """Whether the agent does not need it any more."""


class BackgroundSaves:
    """The snapshots of this process."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel, self._slots = channel, dict[int, _Slot]()
        self._connected = True
        self._known_types: frozenset[Any] = frozenset()
        """Classes and functions in states that can be loaded."""

        self._newest: int | None = None
        """The slot of the newest snapshot."""

        self._newest_published = False
        self._awaited = False
        """Whether the agent has answered that it has no snapshot left."""

    def save(self, archive: Archive, directory: Path, name: CheckpointName, retention: Retention) -> str | None:
        """Hand over a state. Return None, or the reason why it cannot be saved in the background.

        Raises the errors of pickle if the state could not be loaded again.
        """
        check_token()
        self._receive(0.0)
        slot = self._free_slot(archive.size + SEAL_LENGTH)
        if isinstance(slot, str):
            return slot
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
            directory=str(directory.absolute()),
            file=str(name),
            retention=asdict(retention),
        )
        if not self._channel.send(message, [slot.fd]):
            return "the agent does not answer"
        slot.done, self._newest, self._newest_published = False, slot.number, False
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the agent has published each snapshot, or given it up. Return whether the newest is published.

        Return False after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._busy:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._receive(left)
        return self._newest is None or self._newest_published

    def is_busy(self) -> bool:
        """Return whether the agent still needs a snapshot."""
        self._receive(0.0)
        return self._busy

    def await_agent(self) -> None:
        """Wait until the agent has published what earlier processes of this node have saved, but not too long.

        Before that, a process that looks for checkpoints would shut these out.
        """
        self._awaited = False
        if not self._connected or not self._channel.send(AwaitSnapshots()):
            return
        began, reported = time.monotonic(), False
        while self._connected and not self._awaited:
            waited = time.monotonic() - began
            if waited > _PUBLICATION_TIMEOUT:
                log.warning("the agent has not published an earlier checkpoint for %.0f s; going on without it", waited)
                return
            if waited > _REPORT_DELAY and not reported:
                reported = True
                log.warning("waiting for the agent to publish an earlier checkpoint")
            self._receive(_REPORT_DELAY)

    @property
    def _busy(self) -> bool:
        return self._connected and any(not slot.done for slot in self._slots.values())

    def _receive(self, timeout: float | None) -> None:
        """Read the agent's answers; wait for the first up to ``timeout`` seconds."""
        while self._connected and select.select([self._channel], [], [], timeout)[0]:
            received = self._channel.receive(wait=True)
            if received is None:
                self._connected = False
            elif isinstance(received[0], NoSnapshots):
                self._awaited = True
            elif isinstance(received[0], SnapshotDone) and received[0].slot in self._slots:
                self._slots[received[0].slot].done = True
                if received[0].slot == self._newest:
                    self._newest_published = not received[0].error
            timeout = 0.0

    def _free_slot(self, size: int) -> _Slot | str:
        """Return memory of at least ``size`` bytes, or the reason why there is none."""
        if not self._connected:
            return "the agent does not answer"
        free = [slot for slot in self._slots.values() if slot.done]
        if not free and len(self._slots) == _SLOTS:  # the agent has not read the last messages yet
            self._receive(_AGENT_TIMEOUT)
            free = [slot for slot in self._slots.values() if slot.done]
            if not free:
                return f"the agent has not answered for {_AGENT_TIMEOUT:g} s"
        for slot in free:
            if len(slot.memory) >= size:
                return slot
        if free:
            self._release(free[0])
        number = min(set(range(_SLOTS)) - self._slots.keys())
        return self._allocate(number, size)

    def _allocate(self, number: int, size: int) -> _Slot | str:
        available = available_memory()
        if available is not None and size > available.bytes * (1 - _SPARE_MEMORY):
            return f"it needs {size >> 20} MiB of memory, and {available.bytes >> 20} MiB are free in {available.where}"
        fd = os.memfd_create("hpcelastic-snapshot", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)  # now, so that a lack of memory is an error and not a signal
            slot = self._slots[number] = _Slot(number, fd, mmap.mmap(fd, size))
        except OSError as error:
            os.close(fd)
            return f"{size >> 20} MiB of memory: {error.strerror}"
        return slot

    def _release(self, slot: _Slot) -> None:
        del self._slots[slot.number]
        os.close(slot.fd)
        with contextlib.suppress(BufferError):  # the memory is unmapped once the last tensor on it is gone
            slot.memory.close()


@cache
def background_saves() -> BackgroundSaves | None:
    """Return the background saves of this process; None if it has no agent that publishes snapshots."""
    name = os.environ.get(_CHANNEL_VARIABLE)
    if not name:
        return None
    try:
        return BackgroundSaves(WorkerChannel.connect(name))
    except OSError as error:
        log.warning("checkpoints are not saved in the background: %s", error)
        return None
