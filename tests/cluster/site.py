"""Hosts of a test that share a directory of this machine and a network, and programs on them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.host import Host
from tests.cluster.network import Switch
from tests.cluster.waiting import log_tails
from tests.filesystems.clients import CHECKOUT, NOTHING, LocalClient, LocalProcess


@dataclass(frozen=True)
class HostProcess:
    """A program on a host. An nsenter process waits for it, which signals for the program would kill."""

    nsenter: LocalProcess

    def wait(self, timeout: float) -> int:
        return self.nsenter.wait(timeout)

    def output(self) -> str:
        return self.nsenter.output()

    def kill(self, signum: int = signal.SIGKILL) -> None:
        groups = self._groups()
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signum)
        if not groups:
            self.nsenter.kill(signum)

    def _groups(self) -> list[int]:
        """Return the process group that the program leads; nothing before it has one."""
        pid = self.nsenter.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [child for child in map(int, children) if os.getpgid(child) == child]
        return []


class Site:
    """Hosts with these names, which share the directory ``path`` with this machine. They end with ``running``."""

    def __init__(self, path: Path, names: Sequence[str], running: ExitStack) -> None:
        self.path = path
        self._running = running
        self._switch = Switch(str(path))
        running.callback(self._switch.close)
        self.addresses = {name: self._switch.address(number) for number, name in enumerate(names, 1)}
        (path / "log").mkdir()
        addresses = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (path / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
        (path / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")

    def start(self, name: str, daemon: Sequence[str], setup: str = "", env: Mapping[str, str] = NOTHING) -> Host:
        """Start a host with its daemon."""
        host = Host(name, self.addresses[name], list(daemon), self._switch, self.path, setup)
        self._running.callback(host.close)
        host.start({**os.environ, **env})
        return host

    def logs(self) -> str:
        return log_tails(self.path / "log")


@contextmanager
def site(*names: str) -> Iterator[Site]:
    """Make a site of hosts with these names."""
    with ExitStack() as running:
        directory = tempfile.TemporaryDirectory(prefix=f"{names[0]}-", ignore_cleanup_errors=True)
        yield Site(Path(running.enter_context(directory)), names, running)


def start_on(host: Host, argv: Sequence[str], env: Mapping[str, str] = NOTHING) -> HostProcess:
    """Run a program on a host."""
    enter = ["nsenter", f"--target={host.init_pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]
    inside = ["setsid", "env", "-C", str(CHECKOUT)]
    return HostProcess(LocalClient(host.name, CHECKOUT).start([*enter, *inside, *argv], env=env))
