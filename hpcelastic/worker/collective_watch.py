"""The collectives of a worker, and its time in them, in memory that it shares with its agent.

torch counts the collectives of each process group. A thread of the worker copies these numbers, also while the main
thread waits in a collective. It starts when the script creates its first process group. On request it also copies
torch's flight record.

The thread also samples whether the main thread waits for other ranks: it is in a function of torch that communicates,
or in the backward pass, and the kernel says that it sleeps. On a GPU the main thread only starts the work, so nothing
is sampled there.

This file imports no module of this package, because the fork server loads it by its path.
"""

import atexit
import contextlib
import functools
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

INTERVAL = 0.2
"""Seconds between two copies."""

_SAMPLE_INTERVALS = (0.03, 0.07)
"""Seconds between two samples, at least and at most. They are random, so that no step has the same rhythm."""

_END_TIMEOUT, _END_DELAY = 1.0, 0.02
"""Seconds in which the thread ends, and seconds in which torch's threads take the interpreter lock."""

_MAX_FILES = 4096
"""Number of names of files that are remembered."""

_MAX_DELAY = 1.0
"""A sample counts for this number of seconds at most. A longer delay is time in which the process did not run."""

MAX_GROUPS = 64
"""Number of process groups whose numbers fit into the memory. Further ones are left out."""

VARIABLE = "HPCELASTIC_COLLECTIVES"
"""The environment variable with the path of the memory."""

_HEADER = struct.Struct("qqdqd")
"""The round of the worker, the number of groups, and the fields of `Samples`."""

_GROUP = struct.Struct("48s32sqqq")
"""Name and description of a group, the number of its members, the number of begun collectives, and a check value."""

_SIZE = _HEADER.size + MAX_GROUPS * _GROUP.size
"""Bytes of the header and the groups."""

_RECORD = struct.Struct("qqq")
"""After the groups: the number of the agent's newest request for the flight record, the number of the request that the
worker has answered, and the length of the record, which follows."""


class GroupCount(NamedTuple):
    """The collectives of one process group."""

    name: str
    """The name that torch gives the group. It is the same on all members."""

    description: str
    size: int
    """Number of members."""

    begun: int
    """Number of collectives that the worker has begun in the group."""


class Samples(NamedTuple):
    """The time of the main thread since the process has sampled it. All are 0 if it does not."""

    seconds: float = 0.0
    number: int = 0
    """Number of samples."""

    waited: float = 0.0
    """Seconds in which the main thread has waited for other ranks."""


NO_SAMPLES = Samples()


def write(fd: int, round: int, counts: list[GroupCount], samples: Samples = NO_SAMPLES) -> None:
    """Replace the content of the memory ``fd``."""
    data = bytearray(_HEADER.pack(round, len(counts), *samples))
    for count in counts[:MAX_GROUPS]:
        name, description = (text.encode(errors="replace") for text in (count.name, count.description))
        data += _GROUP.pack(name[:48], description[:32], count.size, count.begun, _check(count.size, count.begun))
    os.pwrite(fd, data, 0)


def read(fd: int, round: int) -> tuple[GroupCount, ...]:
    """Return the newest numbers of the worker in ``round``; none if it has no process group, or is of another round."""
    data = os.pread(fd, _SIZE, 0)
    if len(data) < _HEADER.size:
        return ()
    of_round, number, *_ = _HEADER.unpack_from(data)
    if of_round != round:
        return ()
    found = []
    for index in range(min(number, (len(data) - _HEADER.size) // _GROUP.size)):
        name, description, size, begun, check = _GROUP.unpack_from(data, _HEADER.size + index * _GROUP.size)
        if check == _check(size, begun):  # otherwise it is being written
            found.append(GroupCount(_text(name), _text(description), size, begun))
    return tuple(found)


def read_samples(fd: int, round: int) -> Samples:
    """Return the samples of the worker in ``round``; none if it is of another round."""
    data = os.pread(fd, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        return NO_SAMPLES
    of_round, _, *samples = _HEADER.unpack(data)
    return Samples(*samples) if of_round == round else NO_SAMPLES


def request_record(fd: int, number: int) -> None:
    """Request the flight record of torch, which has the newest collectives of a worker, as JSON."""
    os.pwrite(fd, struct.pack("q", number), _SIZE)


def read_record(fd: int, number: int) -> bytes | None:
    """Return the answer to a request, empty if torch has no record; None if there is no answer yet."""
    data = os.pread(fd, _RECORD.size, _SIZE)
    _, answered, length = _RECORD.unpack(data.ljust(_RECORD.size, b"\0"))
    return os.pread(fd, length, _SIZE + _RECORD.size) if answered == number else None


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _check(size: int, begun: int) -> int:
    return size ^ begun ^ 0x68706365


class Sampler:
    """Samples whether the main thread of this process waits for other ranks."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._state = os.open(f"/proc/self/task/{os.getpid()}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._random = random.Random()  # not the generator of the user
        self._last, self._interval = time.monotonic(), self._next()
        self._kinds: dict[str, int] = {}
        """The kind of each file that was seen; see `_kind`."""

        self.samples = NO_SAMPLES

    def wait(self, event: threading.Event) -> None:
        """Wait until the next sample is due, or ``event`` is set."""
        event.wait(max(0.0, self._last + self._interval - time.monotonic()))

    def sample(self) -> None:
        """Take a sample if one is due."""
        now = time.monotonic()
        passed = now - self._last
        if passed < self._interval:
            return
        self._last, due, self._interval = now, self._interval, self._next()
        passed = min(passed, _MAX_DELAY)
        seconds, number, waited = self.samples
        # A thread that waits does not hold the interpreter lock, so it does not delay this thread.
        waited += min(passed, due) if self._waits() else 0.0
        self.samples = Samples(seconds + passed, number + 1, waited)

    def _next(self) -> float:
        return self._random.uniform(*_SAMPLE_INTERVALS)

    def _waits(self) -> bool:
        frame = sys._current_frames().get(self._main or 0)
        if frame is None:
            return False
        if self._kind(frame.f_code.co_filename) == 0:
            while frame is not None and self._kind(frame.f_code.co_filename) < 2:
                frame = frame.f_back
        return frame is not None and os.pread(self._state, 512, 0).rpartition(b")")[2][1:2] == b"S"

    def _kind(self, file: str) -> int:
        """Return 2 for a file below whose functions a rank waits, 1 if it only waits in the innermost one, else 0."""
        kind = self._kinds.get(file)
        if kind is None:
            if len(self._kinds) >= _MAX_FILES:  # compilers make up names
                self._kinds.clear()
            kind = 2 if file.endswith(_WAITS) else 1 if file.endswith(_BACKWARD) or _COMMUNICATION in file else 0
            self._kinds[file] = kind
        return kind


_WAITS = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "hpcelastic/training/stop.py",
    "hpcelastic/training/transfer.py",
)
"""Files in whose functions a rank waits for other ranks."""

_COMMUNICATION, _BACKWARD = "/torch/distributed/", "torch/autograd/graph.py"
"""Files in which a rank waits for other ranks if their function is the innermost one."""


class CollectiveWatch:
    """Copies the numbers of this process to the memory ``fd`` from the creation of its first process group on."""

    def __init__(self, fd: int, c10d: Any) -> None:
        self._fd, self._c10d, self._pid = fd, c10d, os.getpid()
        self._thread: threading.Thread | None = None
        self._ends = False
        self._wake = threading.Event()
        self._copied = 0.0
        """The time of the newest copy."""

        # All ways to create a process group lead to this function: init_process_group, new_group and split_group.
        create: Callable[..., Any] = c10d._new_process_group_helper

        @functools.wraps(create)
        def watched(*args: Any, **kwargs: Any) -> Any:
            group = create(*args, **kwargs)
            self._created()
            return group

        c10d._new_process_group_helper = watched

    def _created(self) -> None:
        if self._thread is None and os.getpid() == self._pid:  # a child process has the function too
            self._thread = threading.Thread(target=self._run, name="hpcelastic collectives", daemon=True)
            self._thread.start()
            atexit.register(self._end)
        self._wake.set()  # the agent shall know a new group soon

    def _run(self) -> None:
        sampler = Sampler()
        while not self._ends:
            samples = not _uses_gpu()
            if self._wake.is_set() or time.monotonic() >= self._copied + INTERVAL:
                self._wake.clear()
                self._copy(sampler.samples if samples else NO_SAMPLES)
            if samples:
                sampler.wait(self._wake)
                sampler.sample()
            else:
                self._wake.wait(INTERVAL)
            if self._wake.is_set():
                time.sleep(INTERVAL / 10)  # so that many new groups cause few copies

    def _end(self) -> None:
        """End the thread, and let torch's threads release the tensors of the last collectives.

        A thread that calls torch while the interpreter ends aborts the process, after all its work was done.
        """
        self._ends = True
        self._wake.set()
        if self._thread is not None and os.getpid() == self._pid:
            self._thread.join(_END_TIMEOUT)
            time.sleep(_END_DELAY)

    def _copy(self, samples: Samples) -> None:
        self._copied = time.monotonic()
        with contextlib.suppress(Exception):  # a group may be destroyed meanwhile
            write(self._fd, int(os.environ.get("HPCELASTIC_ROUND") or 0), self._counts(), samples)
        with contextlib.suppress(OSError):
            self._answer()

    def _answer(self) -> None:
        """Write the flight record if the agent has requested it."""
        data = os.pread(self._fd, _RECORD.size, _SIZE)
        requested, answered, _ = _RECORD.unpack(data.ljust(_RECORD.size, b"\0"))
        if requested != answered:
            record = _flight_record()
            os.pwrite(self._fd, record, _SIZE + _RECORD.size)
            os.pwrite(self._fd, struct.pack("qq", requested, len(record)), _SIZE + 8)

    def _counts(self) -> list[GroupCount]:
        found = []
        for group in list(self._c10d._world.pg_map):
            with contextlib.suppress(Exception):  # not each backend counts
                begun = int(group._get_sequence_number_for_group())
                found.append(GroupCount(group.group_name, group.group_desc, group.size(), begun))
        return found


def _uses_gpu() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _flight_record() -> bytes:
    """Return the record of the first backend that has one; empty if none has."""
    torch = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        with contextlib.suppress(Exception):  # not each build has each of them
            record: bytes = getattr(torch, name)(includeCollectives=True, onlyActive=False)
            if b'"collective_seq_id"' in record:
                return record
    return b""


def start() -> None:
    """Watch this process if its agent wants that, and torch is imported already."""
    path, c10d = os.environ.get(VARIABLE), sys.modules.get("torch.distributed.distributed_c10d")
    if path and c10d is not None and hasattr(c10d, "_new_process_group_helper"):
        with contextlib.suppress(OSError):  # the agent has ended
            CollectiveWatch(os.open(path, os.O_RDWR | os.O_CLOEXEC), c10d)
