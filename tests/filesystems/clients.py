"""A shared filesystem as tests see it: clients, each of which runs programs beside one directory that all share.

Programs of the tests are started as ``python -m tests.filesystems.PROGRAM ARGS`` and print one JSON document, so that
they work the same on this machine and in a guest of another kernel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

CHECKOUT = Path(__file__).parents[2]
NOTHING: Mapping[str, str] = {}


class Process(Protocol):
    """A program that runs on a client."""

    def wait(self, timeout: float) -> int:
        """Its exit status; TimeoutError after ``timeout`` seconds."""
        ...

    def output(self) -> str:
        """Return its output so far, from stdout and stderr."""
        ...

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to it and all that it started; fine if it has ended."""
        ...


class Client(Protocol):
    """A place where programs run. ``directory`` is where they see the shared directory there."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path: ...

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> Process:
        """Run a program with the checkout's root as working directory and ``env`` added to the environment."""
        ...


@dataclass(frozen=True)
class MountSet:
    """One shared filesystem, by the name that the documentation uses, as at least two clients see it."""

    name: str
    clients: tuple[Client, ...]


class LocalProcess:
    """A program on this machine, in a process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._popen = popen
        self._log = log

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait(self, timeout: float) -> int:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self._popen.args!r} still runs after {timeout:g} s:\n{self.output()}") from error

    def output(self) -> str:
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def kill(self, signum: int = signal.SIGKILL) -> None:
        if self._popen.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signum)


@dataclass(frozen=True)
class LocalClient:
    """This machine, looking at the shared directory through one of its own mounts."""

    name: str
    directory: Path

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> LocalProcess:
        log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process's handle
        environment = {**os.environ, **env}
        process = subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        return LocalProcess(process, log)


def local(name: str, directory: Path, clients: int = 2) -> MountSet:
    """Clients that all see ``directory`` through the same mount of this machine."""
    return MountSet(name, tuple(LocalClient(f"client {number}", directory) for number in range(clients)))


def program(name: str, *args: object) -> list[str]:
    """The command line of one of the programs in this package."""
    return [sys.executable, "-m", f"tests.filesystems.{name}", *map(str, args)]


@contextmanager
def started(client: Client, argv: Sequence[str], env: Mapping[str, str] = NOTHING) -> Iterator[Process]:
    """A program on a client; killed at the end."""
    process = client.start(argv, env=env)
    try:
        yield process
    finally:
        process.kill()
        with suppress(TimeoutError):
            process.wait(10)
