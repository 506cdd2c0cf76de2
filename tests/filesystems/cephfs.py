"""CephFS, a distributed filesystem: a host with one daemon of each kind, and two clients, each on its own host."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.site import start_on
from tests.cluster.waiting import wait_until
from tests.filesystems.fuse_hosts import START_TIMEOUT, FuseMountSet, servers_and_clients, start_clients

NAME = "CephFS"
_SERVER = "ceph1"

_CONF = """\
[global]
fsid = {fsid}
mon host = {address}
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
mon allow pool size one = true
mon data = {path}/mon
osd data = {path}/osd
mds data = {path}/mds
run dir = {path}/run
admin socket = {path}/run/$name.$pid.asok
log file = {path}/log/$name.log
crash dir = {path}/run
"""

_SERVE = """\
set -e
cd {path}
export CEPH_CONF={path}/ceph.conf
monmaptool --create --fsid {fsid} --addv a '[v2:{address}:3300,v1:{address}:6789]' monmap
ceph-mon --mkfs -i a --monmap monmap
ceph-mon -f -i a &
ceph osd new {osd}
ceph-osd -i 0 --mkfs --osd-uuid {osd}
ceph-osd -f -i 0 &
ceph-mds -f -i a &
ceph osd pool create metadata 8
ceph osd pool create data 8
ceph fs new shared metadata data
wait
"""


@contextmanager
def cephfs_mounts() -> Iterator[FuseMountSet]:
    """Start a filesystem with two clients. They end with the context."""
    with servers_and_clients(_SERVER) as here:
        facts = {"path": here.path, "address": here.addresses[_SERVER]}
        facts |= {"fsid": str(uuid.uuid4()), "osd": str(uuid.uuid4())}
        for name in ("mon", "osd", "mds", "run"):
            (here.path / name).mkdir()
        conf = here.path / "ceph.conf"
        conf.write_text(_CONF.format(**facts))
        server = here.start(_SERVER, ["bash", "-c", _SERVE.format(**facts)])
        active = ["bash", "-c", f"ceph --conf {conf} mds stat | grep -q 'up:active'"]
        wait_until(NAME, lambda: start_on(server, active).wait(START_TIMEOUT) == 0, bool, START_TIMEOUT, here.logs)
        mount = ["ceph-fuse", "-f", "--conf", str(conf), "--id", "admin", str(here.path / "mount")]
        yield start_clients(here, NAME, mount)
