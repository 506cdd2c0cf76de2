"""The check of a node before it joins: what would make workers fail here that would not fail elsewhere.

All checks run at once, each in a thread of its own, so that one that hangs is a result too.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.health.finding import Finding
from hpcelastic.health.gpus import check_gpus
from hpcelastic.health.settings import HealthSettings, size
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

_SKEW = 5.0
"""Seconds that a clock may differ from the file server's before anybody is told."""

_LONGEST = 200
"""Characters of a command's last words that are kept."""

Check = Callable[[], list[Finding]]


@dataclass(frozen=True)
class Premises:
    """Where a node is checked."""

    paths: RunPaths
    environ: Mapping[str, str]
    """What workers will be started with."""

    settings: HealthSettings


def check_node(where: Premises) -> list[Finding]:
    """All that is wrong with this node; returns within the checks' time limit and a moment."""
    checks = local_checks(where.environ, where.settings)
    checks["run's directory"] = lambda: check_directory(where.paths.incidents)
    return run_all(checks, where.settings.timeout + 1.0)


def local_checks(environ: Mapping[str, str], settings: HealthSettings) -> dict[str, Check]:
    """The checks that need no run."""
    checks: dict[str, Check] = {
        "GPUs": lambda: check_gpus(environ, settings.timeout),
        "disk": lambda: _space(Path(environ.get("TMPDIR") or "/tmp"), "disk", settings.disk),
        "shared memory": lambda: _space(Path("/dev/shm"), "shared_memory", settings.shared_memory),
    }
    command = settings.command
    if command is not None:
        checks["health.command"] = lambda: run_command(command, environ, settings.timeout)
    return checks


def run_all(checks: Mapping[str, Check], limit: float) -> list[Finding]:
    """What ``checks``, run at once, find; one that has not returned within ``limit`` seconds is a finding itself."""
    found: dict[str, list[Finding]] = {}

    def run(name: str) -> None:
        try:
            found[name] = checks[name]()
        except Exception as error:  # a check that can't be made must not keep a node from working
            found[name] = [Finding(name, f"could not be checked: {error}", "nothing was concluded from it", bad=False)]

    threads = [threading.Thread(target=run, args=(name,), name=name, daemon=True) for name in checks]
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = f"no answer within {limit:g} s", "drain the node, and look what hangs there"
    return [finding for name in checks for finding in found.get(name, [Finding(name, *silent)])]


def _space(directory: Path, key: str, least: str) -> list[Finding]:
    wanted = size(least)
    if not wanted or not directory.is_dir():
        return []
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free >= wanted:
        return []
    seen = f"{directory} has {free >> 20} MiB free, less than health.{key}, {least}"
    return [Finding(key.replace("_", " "), seen, "remove what earlier jobs have left there, or ask for less")]


def check_directory(directory: Path) -> list[Finding]:
    """Write, list, read back and remove a file in ``directory``, and compare its time with ours.

    What is wrong with the filesystem as a whole, no space say, is not this node's fault: the run waits for that.
    """
    name, content = f"check-{secrets.token_hex(6)}", secrets.token_bytes(64)
    path = directory / name
    try:
        before = time.time()
        files.publish(path, content, durable=False)
        after = time.time()
    except StoreError:
        return []
    try:
        listed, held, stamped = name in files.names(directory), files.read(path), path.stat().st_mtime
    finally:
        files.remove(path)
    if not listed or held != content:
        what = "is not listed" if not listed else "is read back with another content"
        remedy = "mount the filesystem again on this node; hpcelastic doctor tells more"
        return [Finding("run's directory", f"{directory}: what this node has written there {what}", remedy)]
    return _skew(min(stamped - before, 0.0) + max(stamped - after, 0.0))


def _skew(ahead: float) -> list[Finding]:
    if abs(ahead) <= _SKEW:
        return []
    seen = f"this node's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the file server's"
    return [Finding("clock", seen, "nothing in a run rests on it, logs do: check the node's time service", bad=False)]


def run_command(command: str, environ: Mapping[str, str], timeout: float) -> list[Finding]:
    """Run a person's own check; its last line is the reason if it ends with another status than 0, or too late."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, late = process.communicate(timeout=timeout)[0], False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, late = process.communicate()[0], True
    if process.returncode == 0 and not late:
        return []
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    how = f"has not ended within {timeout:g} s" if late else f"exit status {process.returncode}"
    seen = f"{lines[-1][:_LONGEST]} ({how})" if lines else how
    return [Finding("health.command", seen, f"see what it says on the node: {command}")]
