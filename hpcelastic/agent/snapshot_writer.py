"""The writer of snapshots: it publishes the states that workers have copied to memory as checkpoints.

It works in a thread, so a filesystem that is slow or hangs does not delay the agent. A save that fails is tried again
until a newer snapshot arrives. It never ends a worker. The memory stays with the agent if the worker dies, and the
fence of the directory decides whether a snapshot of an older round may still be published.
"""

import os
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.free_space import FreeSpace
from hpcelastic.backends.connect import run_nonce
from hpcelastic.errors import StoreError
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.worker_channel import (
    AwaitSnapshots,
    ChannelListener,
    NoSnapshots,
    Snapshot,
    SnapshotDone,
    WorkerChannel,
)
from hpcelastic.protocol.events import CheckpointFailed, CheckpointSaved, Event
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training.checkpoint_files import CheckpointFiles, checksum_text
from hpcelastic.training.fence import Fence
from hpcelastic.training.retention import CheckpointName, Retention

_CHUNK = 2**22
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the attempts to publish a snapshot."""

_REPORT_INTERVAL = 30.0
_STALL_TIMEOUT = 60.0
"""Seconds without progress after which the end of the agent does not wait any more."""


@dataclass
class _Job:
    """A snapshot that is not published yet."""

    channel: WorkerChannel
    snapshot: Snapshot
    fd: int
    """The memory."""

    name: CheckpointName
    """The name of the file."""

    written: int = 0
    """Bytes of the present attempt."""

    @property
    def place(self) -> tuple[str, int]:
        """The directory, and the part of the state. A newer snapshot of the same replaces one that is not begun."""
        return self.snapshot.directory, self.name.part


class SnapshotWriter:
    """Receives the snapshots of this node's workers, and publishes them.

    ``log`` is called with events, and ``report`` with lines for people, in the writer's thread.
    """

    def __init__(
        self,
        loop: EventLoop,
        paths: RunPaths,
        control_page: ControlPage,
        log: Callable[[Event], None],
        report: Callable[[str], None],
    ) -> None:
        self._loop, self._paths, self._control_page = loop, paths, control_page
        self._log, self._report = log, report
        self._space = FreeSpace(report)
        self._listener = ChannelListener()
        self._channels: set[WorkerChannel] = set()
        self._pending: dict[tuple[str, int], _Job] = {}
        """The newest snapshot for each place that has not been begun."""

        self._current: _Job | None = None
        self._changed = threading.Condition()
        self._waiters: list[WorkerChannel] = []
        """The workers that wait until no snapshot is left."""

        self._ends = self._abandoned = False
        self._thread: threading.Thread | None = None
        loop.watch(self._listener, self._accept)

    @property
    def name(self) -> str:
        """The name at which workers connect."""
        return self._listener.name

    # In the agent's main thread

    def _accept(self) -> None:
        while (accepted := self._listener.accept()) is not None:
            _, channel = accepted
            self._channels.add(channel)
            self._loop.watch(channel, lambda channel=channel: self._readable(channel))  # type: ignore[misc]

    def _readable(self, channel: WorkerChannel) -> None:
        try:
            received = channel.receive(wait=False)
        except BlockingIOError:
            return
        if received is None:
            self._loop.unwatch(channel)
            self._channels.remove(channel)
            channel.close()
            return
        message, fds = received
        name = CheckpointName.parse(message.file) if isinstance(message, Snapshot) else None
        if isinstance(message, Snapshot) and name is not None and len(fds) == 1:
            self._submit(_Job(channel, message, fds[0], name))
            return
        for fd in fds:
            os.close(fd)
        if isinstance(message, AwaitSnapshots):
            with self._changed:
                self._waiters.append(channel)
                self._answer_waiters()

    def _submit(self, job: _Job) -> None:
        snapshot = job.snapshot
        if not self._may_act(snapshot):
            _end(job, f"round {snapshot.round} has ended")
            return
        with self._changed:
            older = self._pending.pop(job.place, None)
            self._pending[job.place] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if older is not None:
            _end(older, f"replaced by step {snapshot.step}")

    def _may_act(self, snapshot: Snapshot) -> bool:
        seats = range(self._control_page.seats)
        return snapshot.local_rank in seats and self._control_page.is_granted(snapshot.local_rank, snapshot.round)

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
        self._close()

    def _close(self) -> None:
        self._loop.unwatch(self._listener)
        self._listener.close()
        for channel in self._channels:
            self._loop.unwatch(channel)
            channel.close()
        self._channels.clear()

    # In the writer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ends)
                if not self._pending:
                    return
                job = self._current = self._pending.pop(next(iter(self._pending)))
            self._space.before_save(job.snapshot.directory, job.snapshot.step, job.snapshot.size)
            error = self._publish_patiently(job)
            _end(job, error)
            with self._changed:
                self._current = None
                self._answer_waiters()
                self._changed.notify_all()
            if not error:
                self._space.after_save(job.snapshot.directory)

    def _answer_waiters(self) -> None:
        """Called with the lock."""
        if self._current is None and not self._pending:
            for channel in self._waiters:
                channel.send(NoSnapshots())
            self._waiters.clear()

    def _publish_patiently(self, job: _Job) -> str:
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
            self._control_page.report(snapshot.local_rank, snapshot.step)
            return ""
        raise AssertionError("the last attempt returns")

    def _waits(self, place: tuple[str, int], seconds: float) -> bool:
        """Wait before the next attempt. Return False if there shall be none, because a newer snapshot has arrived."""
        with self._changed:
            return not self._changed.wait_for(lambda: place in self._pending, seconds)

    def _publish(self, job: _Job) -> Path:
        snapshot = job.snapshot
        fence = Fence(run_nonce(self._paths), snapshot.round)
        files = CheckpointFiles(Path(snapshot.directory), snapshot.round, fence)
        return files.publish(job.name, Retention(**snapshot.retention), lambda draft: self._write(job, draft))

    def _write(self, job: _Job, draft: BinaryIO) -> None:
        checksum = job.written = 0
        while job.written < job.snapshot.size:
            chunk = os.pread(job.fd, min(_CHUNK, job.snapshot.size - job.written), job.written)
            if not chunk:
                raise OSError(f"the memory of the snapshot has only {job.written} of {job.snapshot.size} bytes")
            draft.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
            job.written += len(chunk)
        draft.write(checksum_text(checksum))


def _end(job: _Job, error: str) -> None:
    """Give the memory back to the worker, if it still lives."""
    os.close(job.fd)
    job.channel.send(SnapshotDone(job.snapshot.slot, error[:1000]))
