"""A guest: a machine with its own kernel that sees this machine's files, read-only, and runs programs of tests."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.network import Switch
from tests.filesystems.clients import CHECKOUT, NOTHING
from tests.filesystems.uml.kernel import Kernel, Machine
from tests.filesystems.uml.serial_line import GuestProcess, SerialLine

BOOT_TIMEOUT = 60.0  # s
_COMMAND_TIMEOUT = 60.0  # s


class Guest:
    """A guest that `boot` starts. It can be used after `wait_booted`, and booted again after `kill`.

    ``memory`` is a size such as ``512M``.
    """

    def __init__(
        self, name: str, addresses: Mapping[str, str], switch: Switch, *, shim: bool, memory: str = "512M"
    ) -> None:
        self.name = name
        self.address = addresses[name]
        self._switch = switch
        self._machine = Machine(name, _arguments(name, addresses), memory, shim=shim)
        self._kernel: Kernel | None = None
        self._line: SerialLine | None = None
        switch.tap(name)

    def boot(self) -> None:
        self.kill()
        near, far = socket.socketpair()
        with far:
            self._kernel = Kernel(self._machine, self._switch, far.fileno())
        self._line = SerialLine(near)

    def wait_booted(self) -> None:
        assert self._kernel and self._line
        try:
            self._line.wait_ready(BOOT_TIMEOUT)
        except TimeoutError as error:
            raise ClusterError(f"guest {self.name} did not boot: {error}\n{self.console()}") from error

    def console(self) -> str:
        """Return the output of its kernel and process 1 since its boot."""
        return self._kernel.console() if self._kernel else ""

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> GuestProcess:
        assert self._line
        return self._line.start(argv, env, str(CHECKOUT))

    def run(self, script: str, timeout: float = _COMMAND_TIMEOUT) -> str:
        """Return the output of shell commands. Raises ClusterError if one fails."""
        process = self.start(["bash", "-ec", script])
        if status := process.wait(timeout):
            raise ClusterError(
                f"guest {self.name}: {script!r} ended with {status}:\n{process.output()}\n{self.console()}"
            )
        return process.output()

    def freeze(self) -> None:
        """Stop the whole machine. Each of its programs stops at its next system call at the latest."""
        assert self._kernel
        self._kernel.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._kernel
        self._kernel.signal(signal.SIGCONT)

    def cut(self) -> None:
        """Disconnect the network. Programs can still be started and send their output."""
        self._switch.detach(self.name)

    def heal(self) -> None:
        self._switch.attach(self.name)

    def kill(self) -> None:
        """Power off without any message to other machines."""
        if self._kernel is not None:
            self._kernel.kill()
            self._kernel = None
        if self._line is not None:
            with suppress(OSError):
                self._line.close()
            self._line = None


def _arguments(name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the kernel's arguments for process 1 of the guest. None may contain a space."""
    shown = [str(CHECKOUT), sys.prefix, str(Path(os.path.realpath(sys.executable)).parents[1])]
    return {
        "name": name,
        "address": addresses[name],
        "guests": ",".join(f"{guest}:{address}" for guest, address in addresses.items()),
        "keep": ":".join(shown),
        "python": sys.executable,
    }
