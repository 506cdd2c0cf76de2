"""This end of a guest's serial line, which starts programs and receives their output. See `commands` for the format."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.errors import ClusterTimeout


class GuestProcess:
    """A program in a guest."""

    def __init__(self, line: SerialLine, number: int, argv: Sequence[str]) -> None:
        self._line = line
        self._number = number
        self._argv = list(argv)
        self._output: list[str] = []
        self._status: int | None = None

    def wait(self, timeout: float) -> int:
        """Return the exit status; minus the number of the signal that killed it, SIGKILL if its guest has died."""
        news = self._line.news
        with news:
            if not news.wait_for(lambda: self._status is not None or self._line.lost, timeout):
                raise ClusterTimeout(f"{self._argv} still runs after {timeout:g} s:\n{self.output()}")
        return -signal.SIGKILL if self._status is None else self._status

    def output(self) -> str:
        with self._line.news:
            return "".join(self._output).encode("latin-1").decode(errors="replace")

    def kill(self, signum: int = signal.SIGKILL) -> None:
        self._line.say(signal=signum, to=self._number)

    def hear(self, message: Mapping[str, Any]) -> None:
        self._output.append(message.get("output", ""))  # bytes as characters, see `commands`
        self._status = message.get("exit", self._status)


class SerialLine:
    """``news`` protects and announces all received messages. ``lost`` is set when the guest has closed the line."""

    def __init__(self, near: socket.socket) -> None:
        self.news = threading.Condition()
        self.lost = False
        self._ready = False
        self._near = near
        self._numbers = itertools.count(1)
        self._processes: dict[int, GuestProcess] = {}
        threading.Thread(target=self._listen, daemon=True, name="serial line").start()

    def wait_ready(self, timeout: float) -> None:
        """Wait until the guest's command server answers."""
        with self.news:
            if not self.news.wait_for(lambda: self._ready or self.lost, timeout) or self.lost:
                raise ClusterTimeout(f"no message from the guest's command server in {timeout:g} s")

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> GuestProcess:
        number = next(self._numbers)
        self._processes[number] = process = GuestProcess(self, number, argv)
        self.say(start=number, argv=list(argv), env=dict(env), cwd=cwd)
        return process

    def say(self, **message: Any) -> None:
        """Send a message. Do nothing if the guest has ended."""
        try:
            self._near.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lose()

    def close(self) -> None:
        self._near.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        try:
            with self._near, self._near.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # a guest was killed, perhaps within a message
        self._lose()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self.news:
            if "ready" in message:
                self._ready = True
            else:
                self._processes[message["of"]].hear(message)
            self.news.notify_all()

    def _lose(self) -> None:
        with self.news:
            self.lost = True
            self.news.notify_all()
