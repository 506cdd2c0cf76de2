"""The memory of a worker for its snapshots: up to three slots, which the worker shares with its agent.

One slot has the newest snapshot, one is for the next, and one may be in use for longer, because the agent writes its
content to the disk.
"""

import contextlib
import mmap
import os
from dataclasses import dataclass

from .memory import allocate_shared

SLOTS = 3


@dataclass
class Slot:
    """Memory for one snapshot."""

    number: int
    fd: int
    memory: mmap.mmap
    step: int = -1
    """The number of training steps in the snapshot."""

    published: bool = True
    """Whether the agent does not need it for the disk any more."""

    copied: bool = True
    """Whether the agent has sealed it, and has sent a copy to another node if there is to be one, or cannot do so."""

    kept: bool = False
    """Whether the agent has said that it keeps it."""

    used: bool = False
    """Whether the agent knows it."""


class Slots:
    """The slots of this process."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self.newest: Slot | None = None
        """The slot of the newest snapshot."""

    def get(self, number: int) -> Slot | None:
        return self._slots.get(number)

    def is_publishing(self) -> bool:
        """Return whether the agent still writes a snapshot to the disk, or is about to."""
        return any(not slot.published for slot in self._slots.values())

    def is_copying(self) -> bool:
        """Return whether the agent still seals or copies the newest snapshot, or is about to."""
        return self.newest is not None and not self.newest.copied

    def newest_is_kept(self) -> bool:
        """Return whether there is no snapshot, or the newest is kept."""
        return self.newest is None or self.newest.kept

    def has_room(self) -> bool:
        """Return whether there is a slot for the next snapshot, or may be one."""
        return len(self._slots) < SLOTS or any(map(self._is_free, self._slots.values()))

    def take(self, size: int) -> Slot | str:
        """Return a free slot of ``size`` bytes, or the reason why there is none. `has_room` is true."""
        free = [slot for slot in self._slots.values() if self._is_free(slot)]
        for slot in free:
            if len(slot.memory) == size:
                return slot
        if free:
            self._release(free[0])
        return self._allocate(min(set(range(SLOTS)) - self._slots.keys()), size)

    def _is_free(self, slot: Slot) -> bool:
        """Return whether the agent neither reads nor seals it, and a newer snapshot is in another slot."""
        return slot.published and slot.copied and slot is not self.newest

    def _allocate(self, number: int, size: int) -> Slot | str:
        try:
            with contextlib.ExitStack() as on_failure:
                fd = allocate_shared(size)
                on_failure.callback(os.close, fd)
                slot = self._slots[number] = Slot(number, fd, mmap.mmap(fd, size))
                on_failure.pop_all()
                return slot
        except OSError as error:
            return str(error.strerror)

    def _release(self, slot: Slot) -> None:
        del self._slots[slot.number]
        os.close(slot.fd)
        with contextlib.suppress(BufferError):  # the memory is unmapped once the last tensor on it is gone
            slot.memory.close()
