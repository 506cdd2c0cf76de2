"""Commands as a user runs them, in a separate directory. All processes that they leave are found and ended."""

import contextlib
import io
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar
from unittest import mock

from hpcelastic.cli import main

T = TypeVar("T")
Done: TypeAlias = "subprocess.CompletedProcess[str]"

MARK = "HPCELASTIC_TEST"
"""Environment variable that identifies the processes of a test."""

TIMEOUT = 90.0
"""Time limit for each expected event in seconds. It is long, because the machine may be busy."""

JOB = """\
run: {name: r}
entrypoint: {script: train.py}
workers: {per_node: 1, stop_grace: 1, preload: [argparse]}
rendezvous: {last_call: 1, lease: 2, margin: 0.5, poll: 0.05}
restarts: {max: 0}
"""
"""A job that starts and ends quickly."""


class Shell:
    """A home and working directory, and an environment without SLURM's variables.

    ``prefix`` is put before every command line, for example to run it elsewhere or with other permissions.
    """

    def __init__(self, directory: Path, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self._prefix = prefix
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._started: list[subprocess.Popen[str]] = []
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HPCELASTIC"))}
        self.environ = ours | {"HOME": str(directory), MARK: self.mark, "PYTHONDONTWRITEBYTECODE": "1"}

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def hpcelastic(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of hpcelastic to its end."""
        return self.python("-m", "hpcelastic", *arguments, environ=environ)

    def command(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Done:
        """Run a command of hpcelastic in this process, for commands that are refused before they start a process.

        This saves half a second of imports for each command.
        """
        with (
            mock.patch.dict(os.environ, self.environ | dict(environ or {}), clear=True),
            _working_directory(self.directory),
            contextlib.redirect_stdout(io.StringIO()) as stdout,
            contextlib.redirect_stderr(io.StringIO()) as stderr,
        ):
            try:
                status = main(list(arguments))
            except SystemExit as exit:
                status = int(exit.code or 0)
        return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())

    def python(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Done:
        """Run Python to its end."""
        process = self.start(*arguments, environ=environ)
        stdout, stderr = process.communicate(timeout=2 * TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start Python with ``arguments`` in its own session."""
        process = subprocess.Popen(
            [*self._prefix, sys.executable, *arguments],
            cwd=self.directory,
            env=self.environ | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def agent(self, *arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start an agent with short times whose run is in ``runs``."""
        timings = "lease=2,margin=0.5,poll=0.05,last_call=1"
        fixed = ("--rdzv-endpoint", "./runs", "--rdzv-id", "r", "--local-addr", "127.0.0.1", "--rdzv-conf", timings)
        return self.start("-m", "hpcelastic", "agent", *fixed, *arguments, environ=environ)

    def listing(self) -> set[str]:
        """Return all files and directories."""
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}

    def processes(self) -> dict[int, str]:
        """Return the living processes that were started here, directly or not: their command lines by pid."""
        wanted = f"{MARK}={self.mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def pid_of(self, words: str) -> int:
        """Wait for the process whose command line contains ``words``, and return its id."""
        return eventually(lambda: next((pid for pid, line in self.processes().items() if words in line), 0))

    def close(self) -> None:
        """End every process that was started here."""
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for process in self._started:
            with process:
                process.kill()


@contextlib.contextmanager
def _working_directory(path: Path) -> Iterator[None]:
    """``contextlib.chdir``, which Python 3.10 does not have."""
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def shell_in(directory: Path, prefix: Sequence[str] = ()) -> Iterator[Shell]:
    shell = Shell(directory, prefix)
    try:
        yield shell
    finally:
        shell.close()


def eventually(look: Callable[[], T]) -> T:
    """Return the result of ``look`` once it is true. Fail if it does not become true in time."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {TIMEOUT:g} s"
        time.sleep(0.02)
    return found
