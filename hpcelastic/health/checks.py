"""The check of a node before it joins. It finds problems of this node that would make workers fail.

All checks run in parallel, each in its own thread, so that a check that hangs is a result too.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.gpus import check_gpus
from hpcelastic.health.settings import HealthSettings, size
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

_MAX_CLOCK_SKEW = 5.0
"""Seconds by which the clock may differ from the file server's without a warning."""

_MAX_OUTPUT = 64 << 10
"""Bytes at the end of a command's output in which its last line is looked for."""

_MAX_LINE = 200
"""Characters of a command's last line that are kept."""

Check = Callable[[], list[CheckFinding]]


@dataclass(frozen=True)
class CheckContext:
    """The run, the environment and the settings of a node check."""

    paths: RunPaths
    environ: Mapping[str, str]
    """The environment in which workers will start."""

    settings: HealthSettings


def check_node(context: CheckContext) -> list[CheckFinding]:
    """Return all problems of this node, within the time-out of the checks and one second."""
    checks = local_checks(context.environ, context.settings)
    checks["run's directory"] = lambda: check_directory(context.paths.checks)
    return run_all(checks, context.settings.timeout + 1.0)


def local_checks(environ: Mapping[str, str], settings: HealthSettings) -> dict[str, Check]:
    """Return the checks that need no run, by name."""
    checks: dict[str, Check] = {
        "GPUs": lambda: check_gpus(environ, settings.timeout),
        "disk": lambda: _check_space(Path(environ.get("TMPDIR") or "/tmp"), "disk", settings.disk),
        "shared memory": lambda: _check_space(Path("/dev/shm"), "shared_memory", settings.shared_memory),
    }
    command = settings.command
    if command is not None:
        checks["health.command"] = lambda: run_command(command, environ, settings.timeout)
    return checks


def run_all(checks: Mapping[str, Check], limit: float) -> list[CheckFinding]:
    """Run ``checks`` in parallel and return their findings. A check that takes over ``limit`` seconds is a finding."""
    found: dict[str, list[CheckFinding]] = {}

    def run(name: str) -> None:
        try:
            found[name] = checks[name]()
        except Exception as error:  # an error of the check itself must not exclude the node
            remedy = "the result is ignored; fix the check or report the error"
            found[name] = [CheckFinding(name, f"could not be checked: {error}", remedy, bad=False)]

    threads = [threading.Thread(target=run, args=(name,), name=name, daemon=True) for name in checks]
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hang = f"no answer within {limit:g} s", "drain the node, and find out what hangs there"
    return [finding for name in checks for finding in found.get(name, [CheckFinding(name, *hang)])]


def _check_space(directory: Path, key: str, minimum: str) -> list[CheckFinding]:
    required = size(minimum)
    if not required or not directory.is_dir():
        return []
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free >= required:
        return []
    seen = f"{directory} has {free >> 20} MiB free, less than health.{key}, {minimum}"
    return [CheckFinding(key.replace("_", " "), seen, "remove files of earlier jobs there, or lower the setting")]


def check_directory(parent: Path) -> list[CheckFinding]:
    """Write, list, read back and remove a file, and compare its time with this node's clock.

    A new directory in ``parent`` holds the file: a listing of those of thousands of nodes would be long. A problem of
    the whole filesystem, such as no free space, is no finding on this node: the run waits for its end.
    """
    directory, content = parent / secrets.token_hex(6), secrets.token_bytes(64)
    path = directory / "check"
    try:
        files.make_directory(directory)
        before = time.time()
        files.publish(path, content, durable=False)
        after = time.time()
    except StoreError:
        return []
    try:
        listed, content_read, mtime = path.name in files.names(directory), files.read(path), path.stat().st_mtime
    finally:
        files.remove(path)
        with suppress(OSError):
            os.rmdir(directory)
    if not listed or content_read != content:
        problem = "is not listed" if not listed else "has other content when it is read back"
        remedy = "mount the filesystem again on this node; hpcelastic doctor finds details"
        return [CheckFinding("run's directory", f"{directory}: a file that this node has written {problem}", remedy)]
    return _check_clock(min(mtime - before, 0.0) + max(mtime - after, 0.0))


def _check_clock(ahead: float) -> list[CheckFinding]:
    """Return a warning if the file server's clock is more than `_MAX_CLOCK_SKEW` seconds ``ahead``, or behind."""
    if abs(ahead) <= _MAX_CLOCK_SKEW:
        return []
    seen = f"this node's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the file server's"
    remedy = "the run does not depend on it, but the times in logs do; check the node's time service"
    return [CheckFinding("clock", seen, remedy, bad=False)]


def run_command(command: str, environ: Mapping[str, str], timeout: float) -> list[CheckFinding]:
    """Run the user's own check. If its exit status is not 0 or it is too late, its last line is the reason.

    Processes that it leaves in the background may hold its output, so only its own end counts.
    """
    with open(os.memfd_create("output"), "wb") as output:  # in memory, because the disk may be full
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and not timed_out:
            return []
        lines = [line.strip() for line in _end_of(output.fileno()).splitlines() if line.strip()]
    end = f"has not ended within {timeout:g} s" if timed_out else f"exit status {process.returncode}"
    seen = f"{lines[-1][:_MAX_LINE]} ({end})" if lines else end
    return [CheckFinding("health.command", seen, f"run the command on the node for its output: {command}")]


def _end_of(fd: int) -> str:
    """Return the end of a file, without moving the position at which other processes write."""
    start = max(0, os.fstat(fd).st_size - _MAX_OUTPUT)
    return os.pread(fd, _MAX_OUTPUT, start).decode(errors="replace")
