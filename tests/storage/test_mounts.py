"""The kernel's table of mounts, with the filesystems of clusters."""

import os
from pathlib import Path

import pytest

from hpcelastic.storage.mounts import UNKNOWN, Mount, containing, mount_of, parse

NFS3 = (
    "66 27 0:52 / /home rw,nosuid,relatime shared:31 - nfs filer:/vol/home rw,vers=3,rsize=65536,hard,nolock,proto=tcp,"
    "mountaddr=10.0.0.9,mountvers=3,local_lock=all,addr=10.0.0.9"
)
NFS4 = (
    "67 27 0:53 / /scratch rw,relatime shared:32 - nfs4 10.0.0.9:/export rw,vers=4.2,hard,proto=tcp,"
    "clientaddr=10.0.1.17,local_lock=none,addr=10.0.0.9"
)

LINES = {
    "ext4": ("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard", Mount("ext4", "/dev/vda", "/")),
    "nfs3": (NFS3, Mount("nfs", "filer:/vol/home", "/home")),
    "nfs4": (NFS4, Mount("nfs4", "10.0.0.9:/export", "/scratch")),
    "lustre": (
        "70 27 0:60 / /lustre rw,relatime - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/work rw,flock,lazystatfs",
        Mount("lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/work", "/lustre"),
    ),
    "beegfs": (
        "71 27 0:61 / /beegfs rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf",
        Mount("beegfs", "beegfs_nodev", "/beegfs"),
    ),
    "gpfs": ("72 27 0:62 / /gpfs/fs1 rw,relatime - gpfs fs1 rw", Mount("gpfs", "fs1", "/gpfs/fs1")),
    "cephfs": (
        "73 27 0:63 / /ceph rw,relatime - ceph 10.1.1.1:6789,10.1.1.2:6789:/vol rw,name=user,secret=<hidden>,acl",
        Mount("ceph", "10.1.1.1:6789,10.1.1.2:6789:/vol", "/ceph"),
    ),
    "moosefs": (
        "74 27 0:64 / /mfs rw,nosuid,nodev,relatime - fuse.mfs mfsmaster:9421 rw,user_id=0,group_id=0,allow_other",
        Mount("fuse.mfs", "mfsmaster:9421", "/mfs"),
    ),
    "glusterfs": (
        "75 27 0:65 / /gluster rw,relatime - fuse.glusterfs s1:/gv0 rw,user_id=0,group_id=0,allow_other",
        Mount("fuse.glusterfs", "s1:/gv0", "/gluster"),
    ),
    "bind mount": (
        "76 27 254:0 /srv/data /data rw,relatime shared:1 master:2 - ext4 /dev/vda rw",
        Mount("ext4", "/dev/vda", "/data"),
    ),
    "escaped": (
        r"77 27 254:0 / /my\040dir\134x\011y rw - ext4 /dev/a\040b rw",
        Mount("ext4", "/dev/a b", "/my dir\\x\ty"),
    ),
    "no source": ("78 27 0:70 / /t rw -  tmpfs  rw", None),
    "empty source": ("79 27 0:70 / /t rw - tmpfs  rw", Mount("tmpfs", "", "/t")),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES.keys())
def test_a_line_of_the_table(line: str, expected: Mount | None) -> None:
    found = list(parse(line).values())
    if expected is None:
        assert not found
    else:
        assert [(mount.kind, mount.source, mount.point) for mount in found] == [
            (expected.kind, expected.source, expected.point)
        ]


@pytest.mark.parametrize(
    "line", ["", "nonsense", "a b c d e f - ext4 / rw", "27 1 254:0 / / - ext4 /dev/vda rw", "5 - "]
)
def test_an_invalid_line_is_ignored(line: str) -> None:
    assert parse(f"{line}\n{NFS4}\n").keys() == {67}


def one(line: str) -> Mount:
    (mount,) = parse(line).values()
    return mount


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (NFS3, "nolock", ""),
        (NFS3, "local_lock", "all"),
        (NFS4, "nolock", None),
        (NFS4, "local_lock", "none"),
        (NFS4, "vers", "4.2"),
        (NFS4, "nosuid", None),
        (NFS3, "nosuid", ""),
        (NFS3, "lock", None),
    ],
)
def test_options_of_the_mount_and_of_the_filesystem_are_found(line: str, name: str, value: str | None) -> None:
    assert one(line).option(name) == value


SAME = {
    "itself": (NFS4, NFS4, True),
    "seen from another node": (NFS4, NFS4.replace("10.0.1.17", "10.0.1.18").replace("67 27", "99 30"), True),
    "at another place": (NFS4, NFS4.replace("/scratch", "/mnt"), True),
    "other locks": (NFS4, NFS4.replace("local_lock=none", "local_lock=flock"), False),
    "another export": (NFS4, NFS4.replace("/export", "/other"), False),
    "another type": (NFS4, NFS4.replace("nfs4", "nfs"), False),
    "read-only": (NFS4, NFS4.replace(" rw,relatime", " ro,relatime"), False),
}


@pytest.mark.parametrize(("first", "second", "same"), SAME.values(), ids=SAME.keys())
def test_whether_two_nodes_have_the_same_mount(first: str, second: str, same: bool) -> None:
    assert one(first).same_as(one(second)) is same


LAYERS = parse(
    "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
    "30 27 0:50 / /data rw - tmpfs below rw\n"
    "31 30 0:51 / /data rw - nfs4 s:/on-top rw\n"
    "32 27 0:52 / /data/deep rw - xfs /dev/x rw\n"
)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/", "/dev/vda"),
        ("/database", "/dev/vda"),
        ("/data", "s:/on-top"),
        ("/data/x", "s:/on-top"),
        ("/data/deep/x", "/dev/x"),
    ],
)
def test_the_longest_and_uppermost_mount_contains_a_path(path: str, source: str) -> None:
    assert containing(LAYERS, path).source == source


def test_without_a_table_the_mount_is_unknown() -> None:
    assert containing({}, "/x") == UNKNOWN


def test_the_mount_of_a_path_is_that_of_stat(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert mount_of(link).kind == "proc"
    assert mount_of(Path("/proc/self")).kind == "proc"
    assert os.stat(mount_of(tmp_path).point).st_dev == os.stat(tmp_path).st_dev
    assert not mount_of(link).local
