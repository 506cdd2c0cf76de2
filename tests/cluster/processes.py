"""Processes as /proc shows them. A process that ends while it is examined counts as ended."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def namespace(pid: int | str, kind: str) -> str | None:
    """Return the identity of a process's namespace of a kind ("pid", "net", ...); None if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def in_namespace(identity: str, kind: str) -> set[int]:
    """Return all live processes in a namespace, by the process ids of this machine."""
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if namespace(entry.name, kind) == identity}


def command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def inner_pid(pid: int) -> int | None:
    """Return the process's id in its own process namespace; None if the process has ended."""
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
    """A process that is held by a pidfd, so that its id cannot be reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        """Return True once it has ended. The init of a pid namespace ends after all other processes in it."""
        return bool(select.select([self._pidfd], [], [], timeout)[0])

    def close(self) -> None:
        os.close(self._pidfd)
