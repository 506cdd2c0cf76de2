"""Every shared filesystem of the tests, by name, with its start and its unusual properties."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.filesystems.anomalies import ALL, NAMES, Anomalies, Fault
from tests.filesystems.availability import why_no_cephfs, why_no_glusterfs, why_no_moosefs, why_no_nfs
from tests.filesystems.cephfs import cephfs_mounts
from tests.filesystems.clients import Client, MountSet, local, started
from tests.filesystems.glusterfs import glusterfs_mounts
from tests.filesystems.moosefs import moosefs_mounts
from tests.filesystems.mounts import faulty_mounts, why_no_fuse
from tests.filesystems.nfs import nfs_mounts

Opened: TypeAlias = "AbstractContextManager[Mapping[str, MountSet]]"


@dataclass(frozen=True)
class Group:
    """Mount sets that are started together."""

    name: str
    opened: Callable[[], Opened]
    """Starts the mount sets and yields them by name."""

    why_unavailable: Callable[[], str | None] = lambda: None
    """The reason and the remedy if they are not available on this machine."""

    slow: bool = False


@dataclass(frozen=True)
class Source:
    """The source of a mount set."""

    name: str
    description: str
    """A short description of its unusual properties."""

    group: Group
    staleness: float = 0.0
    """Seconds for which a client may still see a file that another client has replaced."""

    late_listings: bool = False
    """Whether a listing may miss a new name for a while."""

    fails: bool = False
    """Whether operations fail at random."""

    weekly: bool = False
    """Whether it is tested once a week only."""


@contextmanager
def _folder(name: str, parent: str | None) -> Iterator[Mapping[str, MountSet]]:
    with tempfile.TemporaryDirectory(dir=parent, prefix="hpcelastic-") as directory:
        yield {name: local(name, Path(directory))}


@contextmanager
def _faulty(name: str, anomalies: Anomalies, shared_locks: bool) -> Iterator[Mapping[str, MountSet]]:
    with (
        tempfile.TemporaryDirectory(prefix="hpcelastic-backing-") as backing,
        faulty_mounts(Path(backing), anomalies, shared_locks=shared_locks) as mounts,
    ):
        yield {name: MountSet(name, tuple(mount.client for mount in mounts))}


@contextmanager
def _one(opened: Callable[[], AbstractContextManager[MountSet]]) -> Iterator[Mapping[str, MountSet]]:
    with opened() as shared:
        yield {shared.name: shared}


def _fuse(name: str, description: str, anomalies: Anomalies, *, shared_locks: bool = True) -> Source:
    group = Group(name, partial(_faulty, name, anomalies, shared_locks), why_no_fuse)
    fails = any(fault.operations == ALL for fault in anomalies.faults)
    return Source(name, description, group, max(anomalies.data, anomalies.attributes), anomalies.listings > 0, fails)


def _distributed(
    name: str, opened: Callable[[], AbstractContextManager[MountSet]], why_unavailable: Callable[[], str | None]
) -> Group:
    return Group(name, partial(_one, opened), why_unavailable, slow=True)


def _no_tmpfs() -> str | None:
    return None if os.path.ismount("/dev/shm") else "/dev/shm is not mounted: mount -t tmpfs tmpfs /dev/shm"


STALE = Anomalies(entries=5, negative=30, attributes=5, data=5)

LOST_REPLIES = (
    Fault(NAMES, "EIO", probability=0.1, done=True),
    Fault(NAMES, "ESTALE", probability=0.1, done=True),
)

ERRORS = (Fault(ALL, "ESTALE", probability=0.005), Fault(ALL, "EIO", probability=0.002))

LOCAL = (
    Source("ext4", "the temporary folder of this machine", Group("ext4", partial(_folder, "ext4", None))),
    Source("tmpfs", "memory of this machine", Group("tmpfs", partial(_folder, "tmpfs", "/dev/shm"), _no_tmpfs)),
)

LYING = (
    _fuse("FUSE, local locks", "locks exclude on one client only", Anomalies(), shared_locks=False),
    _fuse(
        "FUSE, stale caches",
        "names, attributes and replaced files may be 5 s old; an absent name stays absent for 30 s",
        STALE,
    ),
    _fuse(
        "FUSE, lost replies",
        "every fifth link, symlink, rename, mkdir and unlink is executed and answered with EIO or ESTALE",
        Anomalies(faults=LOST_REPLIES),
    ),
    _fuse("FUSE, no hard links", "link answers EPERM", Anomalies(faults=(Fault(("link",), "EPERM"),))),
    _fuse(
        "FUSE, no locks",
        "locks answer ENOSYS, and a link to a file in another directory EXDEV",
        Anomalies(one_directory=True, faults=(Fault(("flock", "lock"), "ENOSYS"),)),
    ),
    _fuse("FUSE, errors", "of all operations 0.5 % answer ESTALE, and 0.2 % EIO", Anomalies(faults=ERRORS)),
    _fuse("FUSE, late listings", "a listing may be 1 s old", Anomalies(listings=1)),
    _fuse(
        "FUSE, combined",
        "local locks, stale caches (an absent name for 3 s) and lost replies",
        replace(STALE, negative=3, faults=LOST_REPLIES),
        shared_locks=False,
    ),
)

_NFS = Group("nfs", nfs_mounts, why_no_nfs, slow=True)

REMOTE = (
    Source(
        "NFSv3", "clients compare the time of a directory's last change, which advances in ticks", _NFS, staleness=3
    ),
    Source(  # weekly: it differs from NFSv3 in locks only, on which nothing depends
        "NFSv3 nolock", "the same, with locks that exclude on one client only", _NFS, staleness=3, weekly=True
    ),
    Source("NFSv4.2", "Linux server and clients, default options", _NFS, staleness=3),
    Source("MooseFS", "default options", _distributed("moosefs", moosefs_mounts, why_no_moosefs), staleness=3),
    Source(
        "GlusterFS",
        "one brick, default options",
        _distributed("glusterfs", glusterfs_mounts, why_no_glusterfs),
        staleness=3,
        weekly=True,
    ),
    Source("CephFS", "ceph-fuse, default options", _distributed("cephfs", cephfs_mounts, why_no_cephfs), weekly=True),
)

SOURCES = (*LOCAL, *LYING, *REMOTE)


def make_folder(shared: MountSet, name: str) -> None:
    """Create a folder in the shared directory, on a client, because this machine may not see the directory."""
    client: Client = shared.clients[0]
    for _ in range(20):  # mkdir fails if its reply is lost
        with started(client, ["mkdir", "-p", str(client.directory / name)]) as process:
            if process.wait(60) == 0:
                return
    raise AssertionError(f"{client.directory / name} can't be made: {process.output()}")
