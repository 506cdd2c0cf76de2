"""Processes as /proc shows them. A process that ends while it is looked at counts as gone."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def namespace(pid: int | str, kind: str) -> str | None:
    """The identity of a process's namespace of that kind ("pid", "net", ...), None if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def in_namespace(identity: str, kind: str) -> set[int]:
    """All live processes, by our own process ids, in a namespace."""
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if namespace(entry.name, kind) == identity}


def command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def inner_pid(pid: int) -> int | None:
    """The process's id in its own process namespace, None if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:")), None)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class ProcessHandle:
    """One process, held by a pidfd: its id cannot come to mean another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        """True once it has ended. An init of a pid namespace ends after all else in there."""
        return bool(select.select([self._pidfd], [], [], timeout)[0])

    def close(self) -> None:
        os.close(self._pidfd)
