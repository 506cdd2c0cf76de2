"""A control page: memory that an agent shares with its workers, for stop requests, their answers, tokens and marks.

A worker reads the page in every step, in about a microsecond. No file and no signal is involved, so a filesystem that
hangs cannot delay it. The agent owns the memory. Any process of the machine that knows the page's name can map it,
including processes that a worker has started.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass

from hpcelastic.ipc.marks import RING_SIZE, MarkRing

_REQUEST = struct.Struct("qd?239s")
"""Round and deadline of the stop request, whether to save, and the reason."""

_SEAT = struct.Struct("qqqqq")
"""For one worker: the last round in which it polled, acknowledged a request and ignored SIGTERM; its progress; and the
round in which it may act for the run."""

_POLLED, _ACKNOWLEDGED, _IGNORES_SIGTERM, _PROGRESS, _TOKEN = range(5)
"""The indices of these numbers within a seat."""

_NUMBER = struct.Struct("q")
_NEVER = -1


@dataclass(frozen=True)
class StopRequest:
    """A request that the workers of ``round`` stop at the end of a step."""

    round: int
    deadline: float
    """Seconds on the clock since boot; see `now`."""

    reason: str
    save: bool = True
    """Whether the workers must save their state, because it does not stay in the memory of all of them."""


def now() -> float:
    """Return the seconds on the clock that all processes of a machine share (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ControlPage:
    """The page of one agent. It has one seat for each worker; the index of a seat is the worker's local rank."""

    def __init__(self, fd: int, owned: bool) -> None:
        self._fd = fd if owned else -1
        self._memory = mmap.mmap(fd, 0)

    @classmethod
    def make(cls, seats: int) -> "ControlPage":
        """Create a page without a request."""
        fd = os.memfd_create("hpcelastic-control-page", os.MFD_CLOEXEC)
        os.truncate(fd, _offset(seats, 0) + seats * RING_SIZE)
        page = cls(fd, owned=True)
        _REQUEST.pack_into(page._memory, 0, _NEVER, 0.0, False, b"")
        for seat in range(seats):
            _SEAT.pack_into(page._memory, _offset(seat, _POLLED), *[_NEVER] * 5)
        return page

    @classmethod
    def open(cls, name: str) -> "ControlPage":
        """Map the page of that name. Raises OSError if its agent has ended."""
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(fd, owned=False)
        finally:
            os.close(fd)

    @property
    def seats(self) -> int:
        """The number of seats."""
        return len(self._seats)

    @property
    def name(self) -> str:
        """The path by which processes of this machine open the page while its owner lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Release the memory; called by the owner."""
        self._memory.close()
        os.close(self._fd)

    def marks(self, seat: int) -> MarkRing:
        """Return the marks of a seat, which its worker writes."""
        return MarkRing(self._memory, _offset(len(self._seats), 0) + seat * RING_SIZE)

    # The agent's side

    def request_stop(self, request: StopRequest) -> None:
        """Request that the workers of a round stop at the end of a step."""
        # The round is written last: a worker that reads the new round also reads the new deadline and reason.
        reason = request.reason.encode(errors="replace")[:239]
        struct.pack_into("d?239s", self._memory, 8, request.deadline, request.save, reason)
        _NUMBER.pack_into(self._memory, 0, request.round)

    def polled(self, round: int) -> bool:
        """Return whether any worker of the round has polled the page. Such a worker honours a request."""
        return any(self._get(seat, _POLLED) == round for seat in self._seats)

    def acknowledged(self, round: int) -> bool:
        """Return whether any worker of the round has read a request."""
        return any(self.acknowledges(seat, round) for seat in self._seats)

    def ignores_sigterm(self, seat: int, round: int) -> bool:
        """Return whether this worker of the round ignores SIGTERM."""
        return self._get(seat, _IGNORES_SIGTERM) == round

    def grant(self, seat: int, round: int) -> None:
        """Let this worker act for the run, as a worker of the round."""
        self._put(seat, _TOKEN, round)

    def progress(self) -> int | None:
        """Return the highest step that any worker has reported; None if no worker has reported one."""
        furthest = max(self._get(seat, _PROGRESS) for seat in self._seats)
        return None if furthest == _NEVER else furthest

    # A worker's side

    def poll(self, seat: int, round: int) -> bool:
        """Return whether the workers of the round are requested to stop, and record that this worker polls."""
        self._put(seat, _POLLED, round)
        return bool(_NUMBER.unpack_from(self._memory, 0)[0] == round)

    def request(self) -> StopRequest:
        """Return the newest request."""
        round, deadline, save, reason = _REQUEST.unpack_from(self._memory, 0)
        return StopRequest(round, deadline, reason.rstrip(b"\0").decode(errors="replace"), save)

    def acknowledge(self, seat: int, round: int) -> None:
        """Record that this worker has read the request. Its exit does not count as a success."""
        self._put(seat, _ACKNOWLEDGED, round)

    def ignore_sigterm(self, seat: int, round: int) -> None:
        """Record that this worker ignores SIGTERM."""
        self._put(seat, _IGNORES_SIGTERM, round)

    def acknowledges(self, seat: int, round: int) -> bool:
        """Return whether this worker of the round has read a request."""
        return self._get(seat, _ACKNOWLEDGED) == round

    def is_granted(self, seat: int, round: int) -> bool:
        """Return whether this worker may act for the run as a worker of the round."""
        return self._get(seat, _TOKEN) == round

    def revoke(self, seat: int) -> None:
        """Record that this worker must not act for the run any more, until the agent grants it another round."""
        self._put(seat, _TOKEN, _NEVER)

    def report(self, seat: int, progress: int) -> None:
        """Record the newest step whose state this worker has published."""
        self._put(seat, _PROGRESS, progress)

    @property
    def _seats(self) -> range:
        return range((len(self._memory) - _REQUEST.size) // (_SEAT.size + RING_SIZE))

    def _get(self, seat: int, index: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, _offset(seat, index))[0]
        return value

    def _put(self, seat: int, index: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, _offset(seat, index), value)


def _offset(seat: int, index: int) -> int:
    return _REQUEST.size + seat * _SEAT.size + index * _NUMBER.size
