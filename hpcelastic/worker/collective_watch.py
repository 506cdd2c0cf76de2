"""The number of collectives that a worker has begun, in memory that it shares with its agent.

torch counts the collectives of each process group. A thread of the worker copies these numbers, also while the main
thread waits in a collective. It starts when the script creates its first process group. On request it also copies
torch's flight record.

This file imports no module of this package, because the fork server loads it by its path.
"""

import contextlib
import functools
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

INTERVAL = 0.2
"""Seconds between two copies."""

MAX_GROUPS = 64
"""Number of process groups whose numbers fit into the memory. Further ones are left out."""

VARIABLE = "HPCELASTIC_COLLECTIVES"
"""The environment variable with the path of the memory."""

_HEADER = struct.Struct("qq")
"""The round of the worker, and the number of groups."""

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


def write(fd: int, round: int, counts: list[GroupCount]) -> None:
    """Replace the content of the memory ``fd``."""
    data = bytearray(_HEADER.pack(round, len(counts)))
    for count in counts[:MAX_GROUPS]:
        name, description = (text.encode(errors="replace") for text in (count.name, count.description))
        data += _GROUP.pack(name[:48], description[:32], count.size, count.begun, _check(count.size, count.begun))
    os.pwrite(fd, data, 0)


def read(fd: int, round: int) -> tuple[GroupCount, ...]:
    """Return the newest numbers of the worker in ``round``; none if it has no process group, or is of another round."""
    data = os.pread(fd, _SIZE, 0)
    if len(data) < _HEADER.size:
        return ()
    of_round, number = _HEADER.unpack_from(data)
    if of_round != round:
        return ()
    found = []
    for index in range(min(number, (len(data) - _HEADER.size) // _GROUP.size)):
        name, description, size, begun, check = _GROUP.unpack_from(data, _HEADER.size + index * _GROUP.size)
        if check == _check(size, begun):  # otherwise it is being written
            found.append(GroupCount(_text(name), _text(description), size, begun))
    return tuple(found)


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


class CollectiveWatch:
    """Copies the numbers of this process to the memory ``fd`` from the creation of its first process group on."""

    def __init__(self, fd: int, c10d: Any) -> None:
        self._fd, self._c10d, self._pid = fd, c10d, os.getpid()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
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
        self._wake.set()  # the agent shall know a new group soon

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with contextlib.suppress(Exception):  # a group may be destroyed meanwhile
                write(self._fd, int(os.environ.get("HPCELASTIC_ROUND") or 0), self._counts())
            with contextlib.suppress(OSError):
                self._answer()
            self._wake.wait(INTERVAL)
            time.sleep(INTERVAL / 10)  # so that many new groups cause few copies

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
