"""The writer of snapshots: it publishes the states that workers have copied to memory as checkpoints.

It works in a thread, so a filesystem that is slow or hangs does not delay the agent. A save that fails is tried again
until a newer snapshot arrives. It never ends a worker. The memory stays with the agent if the worker dies, and the
fence of the directory decides whether a snapshot of an older round may still be published.
"""

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcelastic.agent.free_space import FreeSpace
from hpcelastic.backends.connect import run_nonce
from hpcelastic.errors import StoreError
from hpcelastic.ipc.worker_channel import Snapshot
from hpcelastic.protocol.events import CheckpointFailed, CheckpointSaved, Event
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training.checkpoint_files import CheckpointFiles
from hpcelastic.training.fence import Fence
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.seals import SEAL_LENGTH, crc32, seal_text

_CHUNK = 2**22
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the attempts to publish a snapshot."""

_REPORT_INTERVAL = 30.0
_STALL_TIMEOUT = 60.0
"""Seconds without progress after which the end of the agent does not wait any more."""


@dataclass
class Job:
    """A snapshot that is not published yet."""

    snapshot: Snapshot
    name: CheckpointName
    """The name of the file."""

    fd: int
    """The memory. It is closed at the end."""

    round: int
    """The round in whose name the snapshot is published."""

    place: Hashable
    """A newer snapshot of the same place replaces one that is not begun."""

    ended: Callable[[str], None] = lambda error: None
    """Called in any thread when the memory is no longer needed, with the reason if the snapshot is not published."""

    final: bool = False
    """Whether it is published because the agent ends.

    It is left out if its file, or a checkpoint that is not older, is on disk. Its memory is sealed, and is checked: a
    worker may have died while it overwrote the content.
    """

    written: int = 0
    """Bytes of the present attempt."""

    def end(self, error: str) -> None:
        """Release the memory."""
        os.close(self.fd)
        self.ended(error)


class SnapshotWriter:
    """Publishes snapshots, one after the other.

    ``log`` is called with events, ``report`` with lines for people, and ``saved`` with each snapshot that is published,
    in the writer's thread.
    """

    def __init__(
        self,
        paths: RunPaths,
        log: Callable[[Event], None],
        report: Callable[[str], None],
        saved: Callable[[Snapshot], None],
    ) -> None:
        self._paths, self._log, self._report, self._saved = paths, log, report, saved
        self._space = FreeSpace(report)
        self._pending: dict[Hashable, Job] = {}
        """The newest snapshot for each place that has not been begun."""

        self._current: Job | None = None
        self._changed = threading.Condition()
        self._waiters: list[Callable[[], object]] = []
        """Called when no snapshot is left."""

        self._ends = self._abandoned = False
        self._thread: threading.Thread | None = None

    # In the agent's main thread

    def submit(self, job: Job) -> None:
        """Publish a snapshot. One of the same place that is not begun is left out."""
        with self._changed:
            older = self._pending.pop(job.place, None)
            self._pending[job.place] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if older is not None:
            older.end(f"replaced by step {job.snapshot.step}")

    def call_when_idle(self, call: Callable[[], object]) -> None:
        """Call ``call`` once no snapshot is left, in any thread. It must not block."""
        with self._changed:
            self._waiters.append(call)
            self._answer_waiters()

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Wait until all snapshots are published, or cannot be. ``interrupted`` tells whether to give up at once."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
            reported = progressed = time.monotonic()
            written = -1
            while (job := self._current or next(iter(self._pending.values()), None)) is not None:
                now = time.monotonic()
                if job.written != written:
                    written, progressed = job.written, now
                what = f"step {job.snapshot.step}: {written >> 20} of {job.snapshot.size >> 20} MiB of its checkpoint"
                if interrupted() or now - progressed > _STALL_TIMEOUT:
                    self._report(f"{what} are written; the rest is given up")
                    self._abandoned = True
                    break
                if now - reported > _REPORT_INTERVAL:
                    reported = now
                    self._report(f"{what} are written; waiting for the rest")
                self._changed.wait(0.2)

    # In the writer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ends)
                if not self._pending:
                    return
                job = self._current = self._pending.pop(next(iter(self._pending)))
            try:
                error = self._publish_if_needed(job)
            except Exception as unexpected:  # the thread must go on: it saves all later snapshots too
                error = f"{type(unexpected).__name__}: {unexpected}"
                self._report(f"step {job.snapshot.step}: its checkpoint may be missing: {error}")
            job.end(error)
            with self._changed:
                self._current = None
                self._answer_waiters()
                self._changed.notify_all()

    def _publish_if_needed(self, job: Job) -> str:
        """Publish a snapshot, unless it may be left out. Return the reason if it is not possible."""
        if job.final and self._is_old(job):
            return ""
        self._space.before_save(job.snapshot.directory, job.snapshot.step, job.snapshot.size)
        error = self._publish_patiently(job)
        if not error:
            self._space.after_save(job.snapshot.directory)
        return error

    def _is_old(self, job: Job) -> bool:
        """Return whether the file of a snapshot, or a checkpoint that is not older, is on disk."""
        files = CheckpointFiles(Path(job.snapshot.directory), job.round, None)
        try:
            return (Path(job.snapshot.directory) / str(job.name)).exists() or any(
                name[:2] >= job.name[:2] for name in files.names()
            )
        except (OSError, StoreError):
            return False  # the publication reports it

    def _answer_waiters(self) -> None:
        """Called with the lock."""
        if self._current is None and not self._pending:
            for call in self._waiters:
                call()
            self._waiters.clear()

    def _publish_patiently(self, job: Job) -> str:
        """Publish a snapshot, with several attempts. Return the reason if that is not possible, else an empty text."""
        snapshot, began = job.snapshot, time.monotonic()
        for attempt, delay in enumerate((*_RETRY_DELAYS, 0.0), 1):
            try:
                path = self._publish(job)
            except (OSError, StoreError) as error:
                if attempt == 1:
                    self._report(f"the checkpoint of step {snapshot.step} is not saved: {error}")
                transient = isinstance(error, OSError) or isinstance(error.__cause__, OSError)  # else a zombie's
                if transient and delay and self._waits(job.place, delay):
                    continue
                if attempt > 1:
                    self._report(f"the checkpoint of step {snapshot.step} is given up: {error}")
                self._log(CheckpointFailed(round=snapshot.round, step=snapshot.step, error=str(error)))
                return str(error)
            if self._abandoned:
                return ""
            if attempt > 1:
                self._report(f"the checkpoint of step {snapshot.step} is saved, at attempt {attempt}")
            seconds = round(time.monotonic() - began, 3)
            self._log(
                CheckpointSaved(
                    round=snapshot.round, step=snapshot.step, path=str(path), bytes=snapshot.size, seconds=seconds
                )
            )
            self._saved(snapshot)
            return ""
        raise AssertionError("the last attempt returns")

    def _waits(self, place: Hashable, seconds: float) -> bool:
        """Wait before the next attempt. Return False if there shall be none, because a newer snapshot has arrived."""
        with self._changed:
            return not self._changed.wait_for(lambda: place in self._pending, seconds)

    def _publish(self, job: Job) -> Path:
        snapshot = job.snapshot
        fence = Fence(run_nonce(self._paths), job.round)
        files = CheckpointFiles(Path(snapshot.directory), job.round, fence)
        return files.publish(job.name, Retention(**snapshot.retention), lambda draft: self._write(job, draft))

    def _write(self, job: Job, draft: BinaryIO) -> None:
        checksum = job.written = 0
        while job.written < job.snapshot.size:
            chunk = os.pread(job.fd, min(_CHUNK, job.snapshot.size - job.written), job.written)
            if not chunk:
                raise OSError(f"the memory of the snapshot has only {job.written} of {job.snapshot.size} bytes")
            draft.write(chunk)
            checksum = crc32(chunk, checksum)
            job.written += len(chunk)
        seal = seal_text(checksum)
        if job.final and os.pread(job.fd, SEAL_LENGTH, job.snapshot.size) != seal:
            raise StoreError("its memory has changed since it was sealed")
        draft.write(seal)
