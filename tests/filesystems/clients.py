"""A shared filesystem as tests use it: clients, each of which runs programs and sees one shared directory.

Programs of the tests are started as ``python -m tests.filesystems.PROGRAM ARGS`` and print one JSON document. So they
work on this machine and in a guest with another kernel.
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
        """Return the exit status. Raises TimeoutError after ``timeout`` seconds."""
        ...

    def output(self) -> str:
        """Return its output so far, from stdout and stderr."""
        ...

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to the program and its children. Do nothing if it has ended."""
        ...


class Client(Protocol):
    """A machine on which programs run. ``directory`` is the shared directory there."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path: ...

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> Process:
        """Run a program with the checkout's root as working directory and ``env`` added to the environment."""
        ...


@dataclass(frozen=True)
class MountSet:
    """One shared filesystem, by its name in the documentation, with at least two clients."""

    name: str
    clients: tuple[Client, ...]


class LocalProcess:
    """A program on this machine, in its own process group."""

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
    """This machine, with one of its own mounts of the shared directory."""

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
    """Return clients that all see ``directory`` through the same mount of this machine."""
    return MountSet(name, tuple(LocalClient(f"client {number}", directory) for number in range(clients)))


def program(name: str, *args: object) -> list[str]:
    """Return the command line of one of the programs in this package."""
    return [sys.executable, "-m", f"tests.filesystems.{name}", *map(str, args)]


@contextmanager
def started(client: Client, argv: Sequence[str], env: Mapping[str, str] = NOTHING) -> Iterator[Process]:
    """Run a program on a client. It is killed at the end of the context."""
    process = client.start(argv, env=env)
    try:
        yield process
    finally:
        process.kill()
        with suppress(TimeoutError):
            process.wait(10)
