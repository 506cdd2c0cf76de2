"""Measurements of a filesystem by one node. Every check has a time limit; a check that hangs is a result."""

import itertools
import os
import pwd
import secrets
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from hpcelastic.doctor.bounded_calls import run_trial
from hpcelastic.doctor.measurements import Access, NodeMeasurements, Result, Space, Times
from hpcelastic.doctor.race import race_of_processes, race_of_threads
from hpcelastic.errors import StoreError
from hpcelastic.storage import files
from hpcelastic.storage.bounded import Hang, bounded
from hpcelastic.storage.errnos import retry
from hpcelastic.storage.mounts import mount_of


@dataclass(frozen=True)
class Effort:
    """The thoroughness of a probe."""

    names: int
    """Number of names for which the racers compete."""

    racers: int
    replacements: int
    repetitions: int
    """Number of repetitions of each timed operation."""

    processes: bool
    """Race with processes instead of threads."""

    limit: float
    """Seconds after which a check counts as hung. It is long because a busy machine starts processes slowly."""


SHORT = Effort(names=3, racers=3, replacements=10, repetitions=3, processes=False, limit=30.0)
"""The probe of a run when it is created."""

QUICK = Effort(names=10, racers=4, replacements=50, repetitions=5, processes=True, limit=40.0)
FULL = Effort(names=30, racers=6, replacements=300, repetitions=20, processes=True, limit=60.0)


def measure_node(directory: Path, node: str, effort: Effort) -> NodeMeasurements:
    """Measure the filesystem of ``directory``, in a temporary directory below it.

    Raises StoreError if the temporary directory cannot be created. If a check hangs, the checks after it are skipped,
    because they would hang as well.
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
        found[name] = run_trial(partial(_run_in_new_directory, check, work), effort.limit, name)
        if found[name].result is Result.HANGS:
            return NodeMeasurements(node, **found)
    return NodeMeasurements(node, **found, **_measure_times(work, effort))


def client_of(directory: Path) -> str:
    """Identify the kernel and the mount through which this process accesses ``directory``."""
    boot = files.read(Path("/proc/sys/kernel/random/boot_id")) or b""
    return f"{boot.decode().strip()}:{retry(directory.stat).st_dev}"


def remove_tree(path: Path, limit: float) -> None:
    """Remove a directory with its content, and ignore errors. ``limit`` is in seconds."""

    def remove() -> None:
        for _ in range(5):  # NFS keeps the names of files that are still open
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return
            time.sleep(0.1)

    try:
        bounded(remove, limit, str(path))
    except (OSError, Hang):
        return


def _access(directory: Path, work: Path) -> Access:
    """Return the owner and the mode of the directory.

    The owner of the new directory ``work`` is this user as the server sees it, because a server may map users.
    """
    found, mine = retry(directory.stat), retry(work.stat).st_uid
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"user {found.st_uid}"
    return Access(owner, found.st_uid in (mine, os.geteuid()), found.st_uid == 0, found.st_mode & 0o7777)


def _space(directory: Path) -> Space:
    stat = retry(lambda: os.statvfs(directory))
    return Space(stat.f_bavail * stat.f_frsize, stat.f_favail if stat.f_files else None)


Check: TypeAlias = "Callable[[Path], str]"
"""Runs a trial in an empty directory. Returns a description of what is wrong, or an empty string."""


def _checks(effort: Effort) -> dict[str, Check]:
    """Return the checks by the name of their field of `NodeMeasurements`."""
    return {
        "read_back": _read_back,
        "hard_links": lambda work: _links(work, os.link),
        "symbolic_links": lambda work: _links(work, lambda target, path: os.symlink(target.name, path)),
        "exclusive": lambda work: _exclusive(work, effort),
        "replacement": lambda work: _replacement(work / "replaced", effort.replacements),
        "durable_file": lambda work: _sync(work / "durable", os.O_WRONLY | os.O_CREAT),
        "durable_directory": lambda work: _sync(work, os.O_RDONLY | os.O_DIRECTORY),
    }


def _run_in_new_directory(check: Check, work: Path) -> str:
    """Run a check in a new directory, because an earlier attempt may have left files."""
    directory = work / secrets.token_hex(4)
    files.make_directory(directory)
    return check(directory)


def _read_back(work: Path) -> str:
    path = work / "own"
    for content in (b"first", b"second"):
        files.publish(path, content, durable=False)
        if files.read(path) != content:
            return "a file that was just written has other content when it is read"
    if path.name not in files.names(work):
        return "a file that was just created is not listed"
    files.remove(path)
    return "a file that was just removed is still listed" if path.name in files.names(work) else ""


def _links(work: Path, link: Callable[[Path, Path], None]) -> str:
    target, path = work / "target", work / "link"
    target.write_bytes(b"linked")
    link(target, path)
    if files.read(path) != b"linked" or path.name not in files.names(work):
        return "a new link does not lead to its target"
    try:
        link(target, path)
    except FileExistsError:
        return ""
    return "a link replaced an existing name"


def _exclusive(work: Path, effort: Effort) -> str:
    names = [f"name-{number}" for number in range(effort.names)]
    racing = race_of_processes if effort.processes else race_of_threads
    return racing(work, effort.racers, names)


def _replacement(path: Path, count: int) -> str:
    """Read a file in a loop while a thread replaces it. Each read must return complete content."""
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
            wrong = "a file is missing while it is replaced"
        elif number_in(content) is None:
            wrong = "a read returned a mix of old and new content while a file was replaced"
    writer.join()
    if errors:
        raise errors[0]
    return wrong or (
        ""
        if number_in(files.read(path) or b"") == count - 1
        else "a read after the last replacement returns older content"
    )


_BLOCKS = 2048


def whole_content(number: int) -> bytes:
    """Return several pages of copies of ``number``, so that a part of other content can be detected."""
    return b"%07d\n" % number * _BLOCKS


def number_in(content: bytes) -> int | None:
    """Return the number in the output of `whole_content`; None if the content is not complete."""
    head = content[:8]
    return int(head) if head.strip().isdigit() and content == head * _BLOCKS else None


def _sync(path: Path, flags: int) -> str:
    fd = os.open(path, flags, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return ""


def _measure_times(work: Path, effort: Effort) -> dict[str, Any]:
    numbers = itertools.count()
    subject = work / "subject"

    def publish() -> None:
        files.publish_new(work / f"timed-{next(numbers)}", b"timed")

    def measure() -> dict[str, Times]:
        subject.write_bytes(b"x")
        calls = {"publishing": publish, "listing": lambda: os.listdir(work), "reading": lambda: subject.read_bytes()}
        return {name: _times(call, effort.repetitions) for name, call in calls.items()}

    try:
        return bounded(measure, effort.limit, "times")
    except (OSError, StoreError):
        return {}


def _times(call: Callable[[], object], repetitions: int) -> Times:
    durations = []
    for _ in range(repetitions):
        start = time.monotonic()
        call()
        durations.append(time.monotonic() - start)
    return Times(round(statistics.median(durations), 6), round(max(durations), 6))
