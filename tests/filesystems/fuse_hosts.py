"""Distributed filesystems: servers, and clients that mount by a FUSE daemon of their own, each on its own host."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.host import Host
from tests.cluster.network import Switch
from tests.cluster.waiting import log_tails, wait_until
from tests.filesystems.clients import CHECKOUT, NOTHING, LocalClient, LocalProcess, MountSet

CLIENTS = ("n1", "n2")
START_TIMEOUT = 60.0  # s
_PROBE = 'mountpoint -q "$1" && cd "$1" && for _ in {1..8}; do echo 1 >>$2 && sync $2 && cat $2 || exit; done; rm $2'


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


@dataclass(frozen=True)
class FuseClient:
    """A host with its own mount, by its own FUSE daemon."""

    host: Host
    directory: Path
    daemon: str
    """The name of the daemon's process."""

    @property
    def name(self) -> str:
        return self.host.name

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> HostProcess:
        return start_on(self.host, argv, env)

    def freeze(self) -> None:
        """Stop the mount's daemon. Every program then waits at its next access to the filesystem."""
        processes.send(self._daemon(), signal.SIGSTOP)

    def thaw(self) -> None:
        processes.send(self._daemon(), signal.SIGCONT)

    def kill_mount(self) -> None:
        """Kill the mount's daemon. The programs stay, and find no filesystem."""
        processes.send(self._daemon(), signal.SIGKILL)

    def cut(self) -> None:
        self.host.cut()

    def heal(self) -> None:
        self.host.heal()

    def kill(self) -> None:
        self.host.kill()

    def reboot(self) -> None:
        """Start the host again with its mount."""
        self.host.start(dict(os.environ))
        self.wait_mounted()

    def wait_mounted(self) -> None:
        """Wait until programs on this host can write without delay: a new server may make them wait for long."""
        logs = self.directory.parent / "log"
        wait_until(f"the mount on {self.name}", self._writes, bool, START_TIMEOUT, lambda: log_tails(logs))

    def _writes(self) -> bool:
        probe = ["bash", "-c", _PROBE, "probe", str(self.directory), f".probe-{self.name}"]
        return self.start(probe).wait(START_TIMEOUT) == 0

    def _daemon(self) -> set[int]:
        return {pid for pid in self.host.pids() if processes.command_name(pid) == self.daemon}


@dataclass(frozen=True)
class FuseMountSet(MountSet):
    """A filesystem with its clients."""

    clients: tuple[FuseClient, ...]


class Site:
    """A directory that all hosts see, and hosts. Each client mounts its own filesystem over ``mount``."""

    def __init__(self, path: Path, names: Sequence[str], running: ExitStack) -> None:
        self.path = path
        self._running = running
        self._switch = Switch(str(path))
        running.callback(self._switch.close)
        self.addresses = {name: self._switch.address(number) for number, name in enumerate((*names, *CLIENTS), 1)}
        for name in ("log", "mount"):
            (path / name).mkdir()
        addresses = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (path / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
        (path / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")

    def start(self, name: str, daemon: Sequence[str], setup: str = "") -> Host:
        """Start a host with its daemon. It ends with the site."""
        host = Host(name, self.addresses[name], list(daemon), self._switch, self.path, setup)
        self._running.callback(host.close)
        host.start(dict(os.environ))
        return host

    def start_clients(self, name: str, mount: Sequence[str], setup: str = "") -> FuseMountSet:
        """Start the clients of the filesystem ``name``, and wait until each can write."""
        hosts = [self.start(client, mount, setup) for client in CLIENTS]
        clients = tuple(FuseClient(host, self.path / "mount", mount[0]) for host in hosts)
        for client in clients:
            client.wait_mounted()
        return FuseMountSet(name, clients)

    def logs(self) -> str:
        return log_tails(self.path / "log")


@contextmanager
def site(*names: str) -> Iterator[Site]:
    """Make a site whose servers have these names."""
    with ExitStack() as running:
        directory = tempfile.TemporaryDirectory(prefix=f"{names[0]}-", ignore_cleanup_errors=True)
        yield Site(Path(running.enter_context(directory)), names, running)


def start_on(host: Host, argv: Sequence[str], env: Mapping[str, str] = NOTHING) -> HostProcess:
    """Run a program on a host."""
    enter = ["nsenter", f"--target={host.init_pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]
    inside = ["setsid", "env", "-C", str(CHECKOUT)]
    return HostProcess(LocalClient(host.name, CHECKOUT).start([*enter, *inside, *argv], env=env))
