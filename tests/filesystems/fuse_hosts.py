"""Distributed filesystems: servers, and clients that mount by a FUSE daemon of their own, each on its own host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.host import Host
from tests.cluster.site import HostProcess, Site, site, start_on
from tests.cluster.waiting import log_tails, wait_until
from tests.filesystems.clients import NOTHING, MountSet

CLIENTS = ("n1", "n2")
START_TIMEOUT = 60.0  # s
_PROBE = 'mountpoint -q "$1" && cd "$1" && for _ in {1..8}; do echo 1 >>$2 && sync $2 && cat $2 || exit; done; rm $2'


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


@contextmanager
def servers_and_clients(*servers: str) -> Iterator[Site]:
    """Make a site of servers with these names, and of the clients. Each client mounts its own filesystem over
    ``mount``."""
    with site(*servers, *CLIENTS) as here:
        (here.path / "mount").mkdir()
        yield here


def start_clients(here: Site, name: str, mount: Sequence[str], setup: str = "") -> FuseMountSet:
    """Start the clients of the filesystem ``name`` by the command ``mount``, and wait until each can write."""
    hosts = [here.start(client, mount, setup) for client in CLIENTS]
    clients = tuple(FuseClient(host, here.path / "mount", mount[0]) for host in hosts)
    for client in clients:
        client.wait_mounted()
    return FuseMountSet(name, clients)
