"""Mounts of the faulty filesystem, one process each. They are unmounted at the end, also after errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.filesystems.anomalies import Anomalies, Fault, encode
from tests.filesystems.clients import CHECKOUT, LocalClient

TIMEOUT = 30.0
"""Time limit for mounting in seconds."""


def _library() -> str:
    """Return the name of libfuse 3 on this machine. Since 3.17 it has another number."""
    for name in ("libfuse3.so.4", "libfuse3.so.3"):
        with suppress(OSError):
            ctypes.CDLL(name)
            break
    return name


LIBRARY = _library()

NO_ANOMALIES = Anomalies()


@cache
def why_no_fuse() -> str | None:
    """Return None if the faulty filesystem can be mounted here, else the reason and the remedy."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened: load the kernel module fuse; in a container, pass --device /dev/fuse"
    if not shutil.which("fusermount3"):
        return "fusermount3 not found: apt-get install fuse3"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return f"libfuse 3 not found ({error}): apt-get install fuse3"
    return None


class FaultyMount:
    """One mount of ``backing`` at ``client.directory``, with anomalies that can be changed while it is used."""

    def __init__(self, name: str, backing: Path, scratch: Path, anomalies: Anomalies, shared_locks: bool) -> None:
        self.client = LocalClient(name, scratch / "mount")
        self._backing = backing
        self._scratch = scratch
        self.shared_locks = shared_locks
        self._daemon: subprocess.Popen[bytes] | None = None
        self.client.directory.mkdir(parents=True)
        self.set_anomalies(anomalies)

    def set_anomalies(self, anomalies: Anomalies) -> None:
        """Have these anomalies from now on."""
        self.anomalies = anomalies
        draft = self._scratch / "anomalies.draft"
        draft.write_bytes(encode(anomalies))
        draft.replace(self._scratch / "anomalies.json")

    def fail(self, *faults: Fault) -> None:
        """Replace the present faults by these; without arguments there is none. Operations that hang continue."""
        self.set_anomalies(replace(self.anomalies, faults=faults))

    def mount(self) -> None:
        arguments = [
            self._backing,
            self.client.directory,
            self._scratch / "anomalies.json",
            "shared" if self.shared_locks else "local",
        ]
        argv = [sys.executable, "-m", "tests.filesystems.faulty", *map(str, arguments)]
        environment = {
            **os.environ,
            "FUSE_LIBRARY_PATH": LIBRARY,
        }  # otherwise mfusepy uses libfuse 2 if it is installed
        with (self._scratch / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                argv, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + TIMEOUT
        while not _mounted(self.client.directory):
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.client.directory} was not mounted:\n{(self._scratch / 'log').read_text()}")
            time.sleep(0.01)

    def unmount(self) -> None:
        """End the mount at once, even if it is in use. A waiting call gets ENOTCONN, so no process stays in state D."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGKILL)
            self._daemon.wait()
            self._daemon = None
        while _mounted(self.client.directory):
            subprocess.run(["fusermount3", "-u", "-z", self.client.directory], check=True, capture_output=True)


@contextmanager
def faulty_mounts(
    backing: Path, anomalies: Anomalies = NO_ANOMALIES, *, shared_locks: bool = True, count: int = 2
) -> Iterator[tuple[FaultyMount, ...]]:
    """Mounts of one directory, each of which is a separate client. They are unmounted at the end."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-fuse-") as scratch:
        mounts = tuple(
            FaultyMount(f"mount {number}", backing, Path(scratch) / str(number), anomalies, shared_locks)
            for number in range(count)
        )
        try:
            for mount in mounts:
                mount.mount()
            yield mounts
        finally:
            for mount in mounts:
                with suppress(subprocess.CalledProcessError):
                    mount.unmount()


def _mounted(path: Path) -> bool:
    """Return whether a filesystem is mounted at ``path``, without access to the mount itself, which may hang."""
    place = str(path.absolute()).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == place for line in Path("/proc/self/mountinfo").read_text().splitlines())
