"""Mounts of the lying filesystem, one process each, released and unmounted whatever happens."""

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

from tests.filesystems.clients import CHECKOUT, LocalClient
from tests.filesystems.lies import Fault, Lies, encode

TIMEOUT = 30.0
"""Seconds that mounting may take."""


def _library() -> str:
    """libfuse 3 as this machine has it: since 3.17 it has another number."""
    for name in ("libfuse3.so.4", "libfuse3.so.3"):
        with suppress(OSError):
            ctypes.CDLL(name)
            break
    return name


LIBRARY = _library()

NO_LIES = Lies()


@cache
def why_no_fuse() -> str | None:
    """None if the lying filesystem can be mounted here, else the reason and the remedy."""
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
    """One mount of ``backing`` at ``client.directory``, with lies that can be changed while it is used."""

    def __init__(self, name: str, backing: Path, scratch: Path, lies: Lies, shared_locks: bool) -> None:
        self.client = LocalClient(name, scratch / "mount")
        self._backing = backing
        self._scratch = scratch
        self.shared_locks = shared_locks
        self._daemon: subprocess.Popen[bytes] | None = None
        self.client.directory.mkdir(parents=True)
        self.tell(lies)

    def tell(self, lies: Lies) -> None:
        """Lie like this from now on."""
        self.lies = lies
        draft = self._scratch / "lies.draft"
        draft.write_bytes(encode(lies))
        draft.replace(self._scratch / "lies.json")

    def fail(self, *faults: Fault) -> None:
        """Let these faults happen, in place of those before; none: no fault. What hung goes on."""
        self.tell(replace(self.lies, faults=faults))

    def mount(self) -> None:
        arguments = [
            self._backing,
            self.client.directory,
            self._scratch / "lies.json",
            "shared" if self.shared_locks else "local",
        ]
        argv = [sys.executable, "-m", "tests.filesystems.faulty", *map(str, arguments)]
        environment = {**os.environ, "FUSE_LIBRARY_PATH": LIBRARY}  # else mfusepy takes libfuse 2 where it finds one
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
        """End the mount at once, even if it is in use. A waiting call gets ENOTCONN: no process stays in state D."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGKILL)
            self._daemon.wait()
            self._daemon = None
        while _mounted(self.client.directory):
            subprocess.run(["fusermount3", "-u", "-z", self.client.directory], check=True, capture_output=True)


@contextmanager
def faulty_mounts(
    backing: Path, lies: Lies = NO_LIES, *, shared_locks: bool = True, count: int = 2
) -> Iterator[tuple[FaultyMount, ...]]:
    """Mounts of one directory, each a client of its own; unmounted at the end."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-fuse-") as scratch:
        mounts = tuple(
            FaultyMount(f"mount {number}", backing, Path(scratch) / str(number), lies, shared_locks)
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
