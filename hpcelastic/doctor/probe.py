"""What one node can learn of a filesystem by itself. Every check is bounded in time; a hang is a result."""

import errno
import fcntl
import itertools
import os
import pwd
import secrets
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from hpcelastic.doctor.measurements import Access, NodeMeasurements, Result, Space, Times
from hpcelastic.doctor.race import create_exclusively, race_of_processes, race_of_threads
from hpcelastic.doctor.trials import tried
from hpcelastic.errors import StoreError
from hpcelastic.store import files
from hpcelastic.store.bounded import Hang, bounded
from hpcelastic.store.errnos import repeated
from hpcelastic.store.mounts import mount_of


@dataclass(frozen=True)
class Effort:
    """How much a probe does."""

    names: int
    """Names that racers compete for."""

    racers: int
    replacements: int
    repetitions: int
    """Of the operations whose time is taken."""

    processes: bool
    """Race with processes instead of threads, and try POSIX locks, which need another process."""

    limit: float
    """Seconds after which a check counts as hung; long, for a busy machine starts processes slowly."""


SHORT = Effort(names=3, racers=3, replacements=10, repetitions=3, processes=False, limit=30.0)
"""What a run does by itself when it is created."""

QUICK = Effort(names=10, racers=4, replacements=50, repetitions=5, processes=True, limit=40.0)
FULL = Effort(names=30, racers=6, replacements=300, repetitions=20, processes=True, limit=60.0)


def measure_node(directory: Path, node: str, effort: Effort) -> NodeMeasurements:
    """Measure the filesystem of ``directory``, in a directory of its own below, which is removed again.

    Raises StoreError where not even that can be made. After a check that hangs the others are left out: they would
    hang as well.
    """
    work = directory / f".probe-{secrets.token_hex(4)}"
    bounded(lambda: files.make_directory(work), effort.limit, str(directory))
    try:
        return _measure(directory, work, node, effort)
    finally:
        remove_tree(work, effort.limit)


def _measure(directory: Path, work: Path, node: str, effort: Effort) -> NodeMeasurements:
    found: dict[str, Any] = {"client": client_of(directory), "mount": mount_of(directory)}
    found |= {"access": _access(directory, work), "space": _space(directory)}
    for name, check in _checks(effort).items():
        found[name] = tried(partial(_begun, check, work), effort.limit, name)
        if found[name].result is Result.HANGS:
            return NodeMeasurements(node, **found)
    for name, check in _lock_checks(effort).items():
        found[name] = tried(partial(_begun, check, work), effort.limit, name)
    return NodeMeasurements(node, **found, **_all_times(work, effort))


def client_of(directory: Path) -> str:
    """Names the kernel and the mount through which ``directory`` is seen."""
    boot = files.read(Path("/proc/sys/kernel/random/boot_id")) or b""
    return f"{boot.decode().strip()}:{repeated(directory.stat).st_dev}"


def remove_tree(path: Path, limit: float) -> None:
    """Remove a directory with all in it, as far as that can be done."""

    def remove() -> None:
        for _ in range(5):  # NFS keeps names that are still open
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return
            time.sleep(0.1)

    try:
        bounded(remove, limit, str(path))
    except (OSError, Hang):
        return


def _access(directory: Path, work: Path) -> Access:
    """Whose the directory is. Who we are there is told by what we have just made: a server may map users."""
    found, mine = repeated(directory.stat), repeated(work.stat).st_uid
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"user {found.st_uid}"
    return Access(owner, found.st_uid in (mine, os.geteuid()), found.st_uid == 0, found.st_mode & 0o7777)


def _space(directory: Path) -> Space:
    stat = repeated(lambda: os.statvfs(directory))
    return Space(stat.f_bavail * stat.f_frsize, stat.f_favail if stat.f_files else None)


Check: TypeAlias = "Callable[[Path], str]"
"""Tries something in an empty directory and returns what is wrong, in words, or nothing."""


def _checks(effort: Effort) -> dict[str, Check]:
    """By the names of the fields of NodeMeasurements."""
    return {
        "read_back": _read_back,
        "hard_links": lambda work: _links(work, os.link),
        "symbolic_links": lambda work: _links(work, lambda target, path: os.symlink(target.name, path)),
        "exclusive": lambda work: _exclusive(work, effort),
        "replacement": lambda work: _replacement(work / "replaced", effort.replacements),
        "durable_file": lambda work: _sync(work / "durable", os.O_WRONLY | os.O_CREAT),
        "durable_directory": lambda work: _sync(work, os.O_RDONLY | os.O_DIRECTORY),
    }


def _lock_checks(effort: Effort) -> dict[str, Check]:
    checks: dict[str, Check] = {
        "soft_lock": lambda work: _soft_lock(work / "lock"),
        "flock": lambda work: _flock(work / "lock"),
    }
    return checks | ({"posix_lock": lambda work: _posix_lock(work / "lock")} if effort.processes else {})


def _begun(check: Check, work: Path) -> str:
    """A check in a new directory, for an attempt before may have left something."""
    place = work / secrets.token_hex(4)
    files.make_directory(place)
    return check(place)


def _read_back(work: Path) -> str:
    path = work / "own"
    for content in (b"first", b"second"):
        files.publish(path, content, durable=False)
        if files.read(path) != content:
            return "a file that was just written reads otherwise"
    if path.name not in files.names(work):
        return "a file that was just made is not listed"
    files.remove(path)
    return "a file that was just removed is listed" if path.name in files.names(work) else ""


def _links(work: Path, link: Callable[[Path, Path], None]) -> str:
    target, path = work / "target", work / "link"
    target.write_bytes(b"linked")
    link(target, path)
    if files.read(path) != b"linked" or path.name not in files.names(work):
        return "a link does not lead to its target"
    try:
        link(target, path)
    except FileExistsError:
        return ""
    return "a link took the place of another file"


def _exclusive(work: Path, effort: Effort) -> str:
    names = [f"name-{number}" for number in range(effort.names)]
    racing = race_of_processes if effort.processes else race_of_threads
    return racing(work, effort.racers, names)


def _replacement(path: Path, count: int) -> str:
    """A reader in a loop while a writer replaces: what it finds must be whole."""
    wrong, done = "", threading.Event()
    errors: list[Exception] = []

    def write() -> None:
        try:
            for number in range(count):
                files.publish(path, whole_content(number), durable=False)
        except (OSError, StoreError) as error:
            errors.append(error)
        finally:
            done.set()

    files.publish(path, whole_content(0), durable=False)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while not done.is_set() and not wrong:
        content = files.read(path)
        if content is None:
            wrong = "a file that is being replaced is missing for a moment"
        elif number_in(content) is None:
            wrong = "a file that is being replaced is torn for a moment"
    writer.join()
    if errors:
        raise errors[0]
    return wrong or ("" if number_in(files.read(path) or b"") == count - 1 else "the last replacement is not read")


_BLOCKS = 2048


def whole_content(number: int) -> bytes:
    """Some pages that hold ``number`` all over, so that a part of another content would be seen."""
    return b"%07d\n" % number * _BLOCKS


def number_in(content: bytes) -> int | None:
    """The number that `whole_content` was made of; None if it is not whole."""
    head = content[:8]
    return int(head) if head.strip().isdigit() and content == head * _BLOCKS else None


def _sync(path: Path, flags: int) -> str:
    fd = os.open(path, flags, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return ""


def _soft_lock(path: Path) -> str:
    for _ in range(2):
        if not create_exclusively(path, b"held"):
            return "a lock file that was removed is still there"
        if create_exclusively(path, b"held"):
            return "a lock file was created twice"
        files.remove(path)
    return ""


def _flock(path: Path) -> str:
    ours, theirs = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock_now(theirs, fcntl.flock):
            return "two hold the same flock on this node"
        fcntl.flock(ours, fcntl.LOCK_UN)
        return "" if lock_now(theirs, fcntl.flock) else "a released flock stays held"
    finally:
        os.close(ours)
        os.close(theirs)


def lock_now(fd: int, lock: Callable[[int, int], None]) -> bool:
    """Take an exclusive lock if nobody holds it. Raises OSError where there are no locks."""
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


_TRY_POSIX = """
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
"""


def _posix_lock(path: Path) -> str:
    """POSIX locks belong to processes: another one tries."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = [sys.executable, "-I", "-S", "-c", _TRY_POSIX, str(path)]
        other = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    finally:
        os.close(fd)
    return "" if other.returncode == 3 else "two processes hold the same POSIX lock on this node"


def _all_times(work: Path, effort: Effort) -> dict[str, Any]:
    numbers = itertools.count()
    subject = work / "subject"

    def publish() -> None:
        files.publish_new(work / f"timed-{next(numbers)}", b"timed")

    def take() -> dict[str, Times]:
        subject.write_bytes(b"x")
        calls = {"publishing": publish, "listing": lambda: os.listdir(work), "reading": lambda: subject.read_bytes()}
        return {name: _times(call, effort.repetitions) for name, call in calls.items()}

    try:
        return bounded(take, effort.limit, "times")
    except (OSError, StoreError):
        return {}


def _times(call: Callable[[], object], repetitions: int) -> Times:
    taken = []
    for _ in range(repetitions):
        start = time.monotonic()
        call()
        taken.append(time.monotonic() - start)
    return Times(round(statistics.median(taken), 6), round(max(taken), 6))
