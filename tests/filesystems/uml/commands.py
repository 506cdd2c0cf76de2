"""The command server of a guest. It starts and signals programs for the tests outside. Standard library only.

It uses JSON lines over a serial line, which still works when the guest's network is cut:

    in   {"start": 7, "argv": [...], "env": {...}, "cwd": "..."}    {"signal": 9, "to": 7}
    out  {"ready": true}    {"of": 7, "output": "..."}    {"of": 7, "exit": 0}

Output is bytes, and a chunk may end within a character, so each byte is sent as the character of that number.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import subprocess
import sys
import tty
from collections.abc import Callable
from typing import Any

_CHUNK = 1 << 14
_CANNOT_START = 127


class Program:
    """A program in its own process group. Its output goes to a non-blocking pipe."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.output, inner = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self._popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
            )
        except OSError:
            os.close(self.output)
            raise
        finally:
            os.close(inner)
        self.pidfd = os.pidfd_open(self._popen.pid)
        self.reported = False
        """Whether all of its output was read and the pipe is closed. Its number may then belong to another file."""

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        os.killpg(self._popen.pid, number)

    def status(self) -> int:
        """Return the exit status of a program that has ended; minus the number of the signal that killed it."""
        return self._popen.wait()

    def read(self) -> bytes | None:
        """Return the output that can be read now; nothing at the end, when the last holder has closed the pipe."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.output, _CHUNK)
        return None


class CommandServer:
    """Serves one serial line until it is closed."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._programs: dict[int, Program] = {}
        self._unfinished = b""
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        self._watch(self._line, self._hear)
        self._say(ready=True)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _watch(self, fd: int, then: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, then)

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    def _say(self, **message: Any) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._line, data) :]

    def _hear(self) -> None:
        *lines, self._unfinished = (self._unfinished + os.read(self._line, _CHUNK)).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "start" in message:
                self._start(message["start"], message["argv"], message["env"], message["cwd"])
            elif program := self._programs.get(message["to"]):
                with contextlib.suppress(ProcessLookupError):
                    program.signal(message["signal"])

    def _start(self, number: int, argv: list[str], env: dict[str, str], cwd: str) -> None:
        try:
            program = Program(argv, env, cwd)
        except OSError as error:
            self._say(of=number, output=f"{argv[0]}: {error}\n")
            self._say(of=number, exit=_CANNOT_START)
            return
        self._programs[number] = program
        self._watch(program.output, functools.partial(self._forward, number, program))
        self._watch(program.pidfd, functools.partial(self._end, number, program))

    def _forward(self, number: int, program: Program) -> bool:
        """Send the output that can be read now. Return whether there was any."""
        data = None if program.reported else program.read()
        if data:
            self._say(of=number, output=data.decode("latin-1"))
        elif data is not None:
            program.reported = True
            self._forget(program.output)
        return bool(data)

    def _end(self, number: int, program: Program) -> None:
        """Report the end of a program after its output. Its remaining children may still write."""
        del self._programs[number]
        self._forget(program.pidfd)
        while self._forward(number, program):
            pass
        self._say(of=number, exit=program.status())


def main(device: str) -> None:
    line = os.open(device, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    CommandServer(line).serve()


if __name__ == "__main__":
    main(sys.argv[1])
