"""Checks whether this machine can run the test filesystems that need root, packages or devices."""

from __future__ import annotations

import os
import stat
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.availability import why_missing
from tests.filesystems.mounts import why_no_fuse
from tests.filesystems.uml import needs_shim

_NAMESPACES = ("ip", "unshare", "nsenter", "setpriv")
_NFS = ("linux.uml", "modprobe", "mount.nfs", "rpcbind", "rpc.statd", "rpc.mountd", "rpc.nfsd", "exportfs")
_MOOSEFS = ("mfsmaster", "mfschunkserver", "mfsmount")
_GLUSTERFS = ("glusterd", "gluster", "glusterfs")
_CEPHFS = ("ceph", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "monmaptool")
_PROBE = "mount -t tmpfs probe /dev/shm && ip link add b0 type bridge && ip link add v0 type veth peer name v1"
_TAP = f"{_PROBE} && ip tuntap add t0 mode tap"


@cache
def why_no_nfs() -> str | None:
    """Return None if NFS with separate kernels can start here, else the reason and the remedy."""
    compiler = ("cc",) if needs_shim() else ()
    return why_missing(*_NAMESPACES, *_NFS, *compiler) or _no_rights(_TAP)


@cache
def why_no_moosefs() -> str | None:
    """Return None if MooseFS can start here, else the reason and the remedy."""
    return why_missing(*_NAMESPACES, *_MOOSEFS) or why_no_fuse() or _no_rights(_PROBE)


@cache
def why_no_glusterfs() -> str | None:
    """Return None if GlusterFS can start here, else the reason and the remedy."""
    return why_missing(*_NAMESPACES, *_GLUSTERFS, weekly=True) or why_no_fuse() or _no_rights(_PROBE)


@cache
def why_no_cephfs() -> str | None:
    """Return None if CephFS can start here, else the reason and the remedy."""
    return why_missing(*_NAMESPACES, *_CEPHFS, weekly=True) or why_no_fuse() or _no_rights(_PROBE)


def require(reason: str | None) -> None:
    """Skip the test if there is a ``reason``. If CI is set, fail."""
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI must run these tests: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


def _no_rights(probe: str) -> str | None:
    """Return whether namespaces, links and mounts can be created. Try it in namespaces that end at once."""
    if os.geteuid() != 0:
        return "separate machines and networks need root: run pytest as root"
    if "tuntap" in probe and not _is_device(Path("/dev/net/tun")):
        return "/dev/net/tun is missing: load the kernel module tun; in a container, pass --device /dev/net/tun"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"no rights for namespaces and links ({done.stderr.strip()}): in a container, run it privileged"
    return None


def _is_device(path: Path) -> bool:
    return path.exists() and stat.S_ISCHR(path.stat().st_mode)
