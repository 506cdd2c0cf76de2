"""GlusterFS, a distributed filesystem: a server with one brick and two clients, each on its own host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.site import start_on
from tests.cluster.waiting import wait_until
from tests.filesystems.fuse_hosts import START_TIMEOUT, FuseMountSet, servers_and_clients, start_clients

NAME = "GlusterFS"
_SERVER = "gluster1"
_PRIVATE = (
    "for each in /var/lib/glusterd /var/log/glusterfs /run; do mount -t tmpfs tmpfs $each; done; mkdir /run/gluster"
)
"""Gluster keeps its state in fixed directories. Each host has its own."""

_CREATE = (
    "gluster --mode=script volume create shared {server}:{brick} force && gluster --mode=script volume start shared"
)


@contextmanager
def glusterfs_mounts() -> Iterator[FuseMountSet]:
    """Start a volume with the default options and two clients. They end with the context."""
    with servers_and_clients(_SERVER) as here:
        server = here.start(_SERVER, ["glusterd", "--no-daemon"], _PRIVATE)
        (brick := here.path / "brick").mkdir()
        create = ["bash", "-c", _CREATE.format(server=_SERVER, brick=brick)]
        wait_until(NAME, lambda: start_on(server, create).wait(START_TIMEOUT) == 0, bool, START_TIMEOUT, here.logs)
        options = ["--entry-timeout=1", "--attribute-timeout=1"]  # those of mount.glusterfs
        mount = ["glusterfs", "--no-daemon", *options, f"--volfile-server={_SERVER}", "--volfile-id=shared"]
        yield start_clients(here, NAME, [*mount, str(here.path / "mount")], _PRIVATE)
