"""MooseFS, a distributed filesystem: a master, a chunk server and two clients, each on its own host."""

from __future__ import annotations

import os
import signal
import socket
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

NAME = "MooseFS"
LOCAL_LOCKS = "mfsnobsdlocks,mfsnoposixlocks"
"""Mount options with which locks exclude on one client only."""

_MASTER, _CHUNKS, _CLIENTS = "mfsmaster", "mfschunks", ("n1", "n2")
_PORT = 9421
_START_TIMEOUT = 60.0  # s
_PROBE = 'mountpoint -q "$1" && cd "$1" && for _ in {1..8}; do echo 1 >>$2 && sync $2 && cat $2 || exit; done; rm $2'
_UNUSED = b"MFSM NEW"
"""The metadata of an unused filesystem. A master does not start without metadata."""


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
class MooseClient:
    """A host with its own mount, by its own FUSE daemon."""

    host: Host
    directory: Path

    @property
    def name(self) -> str:
        return self.host.name

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> HostProcess:
        enter = ["nsenter", f"--target={self.host.init_pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]
        inside = ["setsid", "env", "-C", str(CHECKOUT)]
        return HostProcess(LocalClient(self.name, self.directory).start([*enter, *inside, *argv], env=env))

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
        _start(self.host)
        self.wait_mounted()

    def wait_mounted(self) -> None:
        """Wait until programs on this host can write without delay: a new master makes them wait for about 10 s."""
        logs = self.directory.parent / "log"
        wait_until(f"{NAME} on {self.name}", self._writes, bool, _START_TIMEOUT, lambda: log_tails(logs))

    def _writes(self) -> bool:
        probe = ["bash", "-c", _PROBE, "probe", str(self.directory), f".probe-{self.name}"]
        return self.start(probe).wait(_START_TIMEOUT) == 0

    def _daemon(self) -> set[int]:
        return {pid for pid in self.host.pids() if processes.command_name(pid) == "mfsmount"}


@dataclass(frozen=True)
class MooseMountSet(MountSet):
    """The filesystem with its clients."""

    clients: tuple[MooseClient, ...]


@contextmanager
def moosefs_mounts(options: str = "") -> Iterator[MooseMountSet]:
    """Start a filesystem with two clients. They end with the context."""
    with ExitStack() as running:
        path = _directory(running)
        hosts = _hosts(path, options, running)
        _start(hosts[_MASTER])
        master = hosts[_MASTER].address
        wait_until("MooseFS's master", lambda: _answers(master), bool, _START_TIMEOUT, lambda: log_tails(path / "log"))
        for name in (_CHUNKS, *_CLIENTS):
            _start(hosts[name])
        clients = tuple(MooseClient(hosts[name], path / "mount") for name in _CLIENTS)
        for client in clients:
            client.wait_mounted()
        yield MooseMountSet(f"{NAME}, local locks" if options == LOCAL_LOCKS else NAME, clients)


def _hosts(path: Path, options: str, running: ExitStack) -> dict[str, Host]:
    switch = Switch(str(path))
    running.callback(switch.close)
    addresses = {name: switch.address(number) for number, name in enumerate((_MASTER, _CHUNKS, *_CLIENTS), 1)}
    _configure(path, addresses)
    daemons = {_MASTER: _server(path, "mfsmaster"), _CHUNKS: _server(path, "mfschunkserver")}
    daemons |= {name: _mount(path, addresses[_MASTER], options) for name in _CLIENTS}
    hosts = {name: Host(name, address, daemons[name], switch, path) for name, address in addresses.items()}
    for host in hosts.values():
        running.callback(host.close)
    return hosts


def _start(host: Host) -> None:
    host.start(dict(os.environ))


def _directory(running: ExitStack) -> Path:
    """Create the directory on every host. Each mounts its own filesystem over `mount`."""
    path = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="moosefs-", ignore_cleanup_errors=True)))
    for name in ("log", "mount", _MASTER, _CHUNKS, "disk"):
        (path / name).mkdir()
    return path


def _configure(path: Path, addresses: Mapping[str, str]) -> None:
    own = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\nLOCK_MEMORY = 0\n"
    texts = {
        "hosts": "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()),
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "exports": "* / rw,alldirs,admin,maproot=0:0\n* . rw\n",
        "topology": "",
        "disks": f"{path}/disk\n",
        "mfsmaster.cfg": f"{own}DATA_PATH = {path}/{_MASTER}\n"
        f"EXPORTS_FILENAME = {path}/exports\nTOPOLOGY_FILENAME = {path}/topology\n",
        "mfschunkserver.cfg": f"{own}DATA_PATH = {path}/{_CHUNKS}\nHDD_CONF_FILENAME = {path}/disks\n"
        f"MASTER_HOST = {addresses[_MASTER]}\nMASTER_RECONNECTION_DELAY = 1\n",
    }
    for name, text in texts.items():
        (path / name).write_text(text)
    (path / _MASTER / "metadata.mfs").write_bytes(_UNUSED)


def _server(path: Path, program: str) -> list[str]:
    return [program, "-f", "-c", f"{path}/{program}.cfg", "start"]


def _mount(path: Path, master: str, options: str) -> list[str]:
    return ["mfsmount", "-f", "-H", master, "-o", ",".join(filter(None, ("mfsnice=0", options))), f"{path}/mount"]


def _answers(master: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((master, _PORT)) == 0
