"""A filesystem that counts its operations: ``metered BACKING MOUNTPOINT``.

It shows a directory of this machine through FUSE. The kernel caches names and attributes for three seconds, the initial
time of NFS, so the counts are those of the requests to a server. Counts are read from an extended attribute of the
mount.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import CHECKOUT
from tests.filesystems import faulty
from tests.filesystems.anomalies import Anomalies, encode
from tests.filesystems.mounts import LIBRARY, why_no_fuse

KINDS = {
    "look up": ("getattr", "readlink"),
    "list": ("readdir",),
    "open": ("open",),
    "read": ("read",),
    "create": ("create", "link", "symlink", "mkdir"),
    "rename": ("rename",),
    "remove": ("unlink", "rmdir"),
    "write": ("write", "truncate"),
    "sync": ("fsync", "fsyncdir"),
    "lock": ("flock",),
    "attributes": ("chmod", "chown", "utimens", "statfs"),
}
"""Counted operations of FUSE by kind. Closing a file and opening a directory need no request to a server. ``lock`` is
not counted: libfuse releases POSIX locks at every close, and no program here uses them."""

_KIND_OF = {operation: kind for kind, operations in KINDS.items() for operation in operations}
_CACHED = Anomalies(entries=3.0, attributes=3.0)
_COUNTS = "user.counts"
_TIMEOUT = 30.0

unavailable = why_no_fuse


class Metered(faulty.SharedLocks):
    """The operations of the mount, with counts."""

    def __init__(self, backing: str, anomalies: Path) -> None:
        super().__init__(backing, anomalies)
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def act(self, name: str, path: str, done: bool) -> None:
        if not done and name in _KIND_OF:
            self._count(_KIND_OF[name], 1)

    def _count(self, what: str, amount: int) -> None:
        with self._counting:
            self._counts[what] += amount

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        data: bytes = super().read(path, size, offset, fh)
        self._count("bytes read", len(data))
        return data

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        self._count("bytes written", len(data))
        return int(super().write(path, data, offset, fh))

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        if path != "/" or name != _COUNTS:
            raise OSError(61, "No data available")
        with self._counting:
            return json.dumps(self._counts).encode()


class Mount:
    """A mounted filesystem that counts."""

    def __init__(self, directory: Path, backing: Path) -> None:
        self.directory = directory
        self.backing = backing
        """The same files, without counting."""

    def counts(self) -> Counter[str]:
        """Return the counts since the mount."""
        return Counter(json.loads(os.getxattr(self.directory, _COUNTS)))


@contextmanager
def metered_mount() -> Iterator[Mount]:
    """Mount an empty directory. It is unmounted and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-metered-") as scratch:
        mount = Mount(Path(scratch) / "mount", Path(scratch) / "backing")
        for directory in (mount.directory, mount.backing):
            directory.mkdir()
        anomalies = Path(scratch) / "anomalies.json"
        anomalies.write_bytes(encode(_CACHED))
        argv = [sys.executable, "-m", "benchmarks.metered", str(mount.backing), str(mount.directory)]
        environ = {**os.environ, "FUSE_LIBRARY_PATH": LIBRARY}
        with (Path(scratch) / "log").open("wb") as log:
            daemon = subprocess.Popen(argv, cwd=CHECKOUT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _await(mount.directory, daemon, Path(scratch) / "log")
            yield mount
        finally:
            subprocess.run(["fusermount3", "-u", "-z", mount.directory], capture_output=True)
            daemon.kill()
            daemon.wait()


def _await(directory: Path, daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not os.path.ismount(directory):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{directory} was not mounted:\n{log.read_text()}")
        time.sleep(0.01)


def main(backing: str, mountpoint: str) -> None:
    """Serve the mount until it is unmounted or the process is killed."""
    operations = Metered(backing, Path(backing).with_name("anomalies.json"))
    options: dict[str, Any] = {"use_ino": True, "hard_remove": True, "fsname": "metered", "max_threads": 128}
    faulty._Fuse(operations, mountpoint, foreground=True, default_permissions=True, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
