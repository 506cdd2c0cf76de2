"""NFS as in clusters: a Linux server and two Linux clients with their own kernels, on a private network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.network import Switch
from tests.filesystems.clients import NOTHING, MountSet
from tests.filesystems.uml import Guest, GuestProcess, needs_shim

LEASE = 10
"""Seconds after which a server of version 4 gives the locks of a silent client to others. Linux's default is 90."""

_SERVER = "server"
_CLIENTS = ("n1", "n2")
_EXPORT = "/mnt/export"


@dataclass(frozen=True)
class Mount:
    """One kind of mount of the server's directory."""

    name: str
    options: str
    slug: str
    """The directory on the server, and the mount point on clients."""

    @property
    def source(self) -> str:
        """Paths of version 4 begin at the export marked `fsid=0`, paths of version 3 at the server's root."""
        root = _EXPORT if self.options.startswith("vers=3") else ""
        return f"{_SERVER}:{root}/{self.slug}"


MOUNTS = (
    Mount("NFSv3", "vers=3,proto=tcp,mountproto=tcp", "v3"),
    Mount("NFSv3 nolock", "vers=3,proto=tcp,mountproto=tcp,nolock", "v3-nolock"),
    Mount("NFSv4.0", "vers=4.0,proto=tcp", "v40"),
    Mount("NFSv4.2", "vers=4.2,proto=tcp", "v42"),
    Mount("NFSv4.2 actimeo=60", "vers=4.2,proto=tcp,actimeo=60", "v42-actimeo"),
)

# A server that starts lets old clients reclaim their locks for a while, and makes new ones wait. This server has no old
# clients, so the time is shortened: `nlm_*` are for version 3, in rounds of `nlm_timeout` seconds, at least 3. A kernel
# without storage for clients, such as Debian 13's without nfsdcld, refuses this, and needs no shorter time.
_SERVE = f"""
mkdir {_EXPORT}
mount -t tmpfs -o mode=0777 tmpfs {_EXPORT}
(cd {_EXPORT} && mkdir -m 0777 {" ".join(mount.slug for mount in MOUNTS)})
modprobe lockd nlm_timeout=3 nlm_grace_period=1
modprobe nfsd
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
echo {LEASE} >/proc/fs/nfsd/nfsv4leasetime
echo {LEASE} >/proc/fs/nfsd/nfsv4gracetime
rpcbind -w
rpc.statd --no-notify
exportfs -o rw,no_root_squash,no_subtree_check,fsid=0,insecure '*:{_EXPORT}'
rpc.mountd
rpc.nfsd 8
echo Y >/proc/fs/nfsd/v4_end_grace || true
"""


@dataclass(frozen=True)
class NfsClient:
    """A guest that has mounted the server's directory."""

    guest: Guest
    mount: Mount
    mounts: Sequence[Mount]
    """All mounts of the guest, this one included."""

    @property
    def name(self) -> str:
        return self.guest.name

    @property
    def directory(self) -> Path:
        return directory_of(self.mount)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] = NOTHING) -> GuestProcess:
        return self.guest.start(argv, env=env)

    def remount(self, options: str = "") -> None:
        """Mount again, with additional options."""
        self.guest.run(f"umount -f -l {self.directory} || :\n{mounting(self.mount, options)}")

    def unmount(self) -> None:
        """Detach the mount from the directory tree. Programs keep their open files."""
        self.guest.run(f"umount -f -l {self.directory}")

    def freeze(self) -> None:
        self.guest.freeze()

    def thaw(self) -> None:
        self.guest.thaw()

    def cut(self) -> None:
        self.guest.cut()

    def heal(self) -> None:
        self.guest.heal()

    def kill(self) -> None:
        self.guest.kill()

    def reboot(self) -> None:
        """Boot the guest again with all its mounts."""
        self.guest.boot()
        self.guest.wait_booted()
        self.guest.run(joining(self.mounts))


@dataclass(frozen=True)
class NfsMountSet(MountSet):
    """The same mount on two clients."""

    clients: tuple[NfsClient, ...]


@contextmanager
def nfs_mounts(mounts: Sequence[Mount] = MOUNTS, *, shim: bool | None = None) -> Iterator[dict[str, NfsMountSet]]:
    """Mount sets by name, all from one server on the same two clients, which boot and end with the context.

    The set contains only mounts that the kernel supports: newer kernels have no NFSv4.0.
    """
    with ExitStack() as running:
        server, *guests = _booted(running, needs_shim() if shim is None else shim)
        _run_on([server], _SERVE)
        mounts = [mount for mount in mounts if _offered(guests[0], mount)]
        _run_on(guests, joining(mounts))
        yield {mount.name: _mount_set(guests, mount, mounts) for mount in mounts}


def _mount_set(guests: Sequence[Guest], mount: Mount, mounts: Sequence[Mount]) -> NfsMountSet:
    return NfsMountSet(mount.name, tuple(NfsClient(guest, mount, mounts) for guest in guests))


def _booted(running: ExitStack, shim: bool) -> list[Guest]:
    switch = Switch()
    running.callback(switch.close)
    addresses = {name: switch.address(number) for number, name in enumerate((_SERVER, *_CLIENTS), 1)}
    guests = [Guest(name, addresses, switch, shim=shim) for name in addresses]
    for guest in guests:
        running.callback(guest.kill)
        guest.boot()
    for guest in guests:
        guest.wait_booted()
    return guests


def _run_on(guests: Sequence[Guest], script: str) -> None:
    """Run a command on all of them at the same time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda guest: guest.run(script), guests))


def _offered(guest: Guest, mount: Mount) -> bool:
    """Return whether the kernel supports that version of NFS. It is called only for versions that may be missing."""
    if "vers=4.0" not in mount.options:
        return True
    output = guest.run(f"({mounting(mount)} && umount {directory_of(mount)}) 2>&1 || true")
    return "Protocol not supported" not in output


def joining(mounts: Sequence[Mount]) -> str:
    """Return the shell commands that make a guest a client."""
    return "\n".join(["rpcbind -w", "rpc.statd --no-notify", *map(mounting, mounts)])


def mounting(mount: Mount, options: str = "") -> str:
    """Return the shell command that mounts it, with additional options."""
    where = directory_of(mount)
    options = ",".join(filter(None, (mount.options, options)))
    return f"mkdir -p {where} && mount -t nfs -o {options} {mount.source} {where}"


def directory_of(mount: Mount) -> Path:
    """Return the directory on the clients."""
    return Path("/mnt") / mount.slug
