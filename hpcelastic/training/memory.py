"""Memory that processes share, and how much a process may still use: of the machine, and of each cgroup above it."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from pathlib import Path
from typing import NamedTuple

_SPARE = 0.05
"""The part of the free memory that stays free."""

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""Version 1 of cgroups shows a number beyond this for no limit."""


def allocate_shared(size: int) -> int:
    """Return a descriptor of ``size`` bytes of new memory, which processes can share.

    Raises OSError if too little is free. The memory is there at once, so its first use is fast and cannot fail. Its
    size can never change: a process that reads beyond the end of shared memory is killed.
    """
    available = available_memory()
    if available is not None and size > available.bytes * (1 - _SPARE):
        free = f"{available.bytes >> 20} MiB are free in {available.where}"
        raise OSError(errno.ENOMEM, f"it needs {size >> 20} MiB of memory, and {free}")
    fd = os.memfd_create("hpcelastic-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, f"{size >> 20} MiB of memory: {error.strerror}") from error
    except BaseException:  # such as the end of the round
        os.close(fd)
        raise
    return fd


def has_fixed_size(fd: int, size: int) -> bool:
    """Return whether a descriptor that another process has sent is of memory of ``size`` bytes, and will always be."""
    try:
        return bool(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) and os.fstat(fd).st_size == size
    except OSError:  # it is no memory
        return False


@contextmanager
def mapped(fd: int) -> Iterator[memoryview]:
    """Map shared memory. If an error leaves the block, its traceback may refer to the memory, and unmaps it later."""
    memory = mmap.mmap(fd, 0)
    view = memoryview(memory)
    try:
        yield view
    finally:
        with suppress(BufferError):
            view.release()
            memory.close()


class AvailableMemory(NamedTuple):
    bytes: int
    where: str
    """A description of what sets the limit."""


def available_memory(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> AvailableMemory | None:
    """Return the smallest amount that is free: on the machine, or in a cgroup. None if the kernel does not say."""
    found = [*_of_cgroups(proc, cgroups)]
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            found.append(AvailableMemory(int(rest.split()[0]) * 1024, "this machine"))
    return min(found, default=None)


def _of_cgroups(proc: Path, cgroups: Path) -> list[AvailableMemory]:
    found = []
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used, cache = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        place = root / path.lstrip("/")
        for directory in (place, *place.parents):
            if not directory.is_relative_to(root):
                break
            most, current = _number(directory / limit), _number(directory / used)
            if most is not None and current is not None and most < _UNLIMITED:
                free = most - current + _reclaimable(directory, cache)
                found.append(AvailableMemory(max(0, free), f"the memory limit of {directory}"))
    return found


def _reclaimable(directory: Path, name: str) -> int:
    """Return the bytes of the page cache that the kernel gives up first."""
    numbers = dict(line.split(" ", 1) for line in _lines(directory / "memory.stat"))
    return int(numbers.get(name, 0))


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
