"""Watch runs from threads and asyncio, so that a slow filesystem does not block the caller.

The threads are daemons: a thread that is blocked by a dead filesystem does not keep its process alive.
"""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hpcelastic.api.liveness import LivenessMonitor
from hpcelastic.api.status import RunStatus, status_of
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import RunFailed, StoreError
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.paths import RunPaths

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two polls of a run's directory."""


_ERROR_TIMEOUT = 600.0
"""Seconds since the last successful read for which errors are tolerated."""


class ErrorTolerance:
    """Tolerates errors of the run ``name`` for some minutes, because the run may survive them.

    An error of the first attempt is not tolerated, such as that of a damaged run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._read_at: float | None = None
        self._last_error = ""

    def attempt(self, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns, or None after an error that is tolerated. Logs such an error once."""
        try:
            found = read()
        except (OSError, StoreError) as error:
            if self._read_at is None or time.monotonic() - self._read_at > _ERROR_TIMEOUT:
                raise
            self.report(error)
            return None
        self._read_at = time.monotonic()
        return found

    def report(self, error: OSError | StoreError) -> None:
        """Log an error, unless it is the last one again."""
        if str(error) != self._last_error:
            log.warning("cannot read the status of %s: %s", self._name, error)
        self._last_error = str(error)


async def run_in_thread(work: Callable[[threading.Event], T]) -> T:
    """Return the result of ``work``, which runs in a thread. On cancellation, sets the event that ``work`` receives."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    cancelled = threading.Event()

    def call() -> None:
        deliver: Callable[[], None]
        try:
            deliver = functools.partial(future.set_result, work(cancelled))
        except BaseException as error:  # raised again in the awaiting task
            deliver = functools.partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_deliver_unless_done, future, deliver)

    threading.Thread(target=call, name="hpcelastic await", daemon=True).start()
    try:
        return await future
    finally:
        cancelled.set()


def _deliver_unless_done(future: "asyncio.Future[Any]", deliver: Callable[[], None]) -> None:
    if not future.done():
        deliver()


def start_watcher(
    paths: RunPaths, changed: Callable[[RunStatus], object] | None, ended: Callable[[], object] | None
) -> Callable[[], None]:
    """Call ``changed`` with each new status, and ``ended`` at the end, in a thread. Returns a function to cancel it."""
    cancelled = threading.Event()

    def watch() -> None:
        reader = RunReader(paths)  # of this thread, which may outlive the `Run`
        with contextlib.closing(reader), contextlib.suppress(RunFailed):  # no agent is left: like the end of the run
            for status in _changes(reader, cancelled):
                if changed and not cancelled.is_set():
                    _run_callback(paths, changed, status)
        if ended and not cancelled.is_set():
            _run_callback(paths, ended)

    threading.Thread(target=watch, name=f"hpcelastic {paths.root.name}", daemon=True).start()
    return cancelled.set


def _changes(run: RunReader, cancelled: threading.Event) -> Iterator[RunStatus]:
    """Yield the run's status now and after each change, until its end. Raises RunFailed if no agent and job is left."""
    monitor, last, errors = LivenessMonitor(run), None, ErrorTolerance(run.name)
    while not cancelled.is_set():
        try:
            backend = run.backend()
            state = read_state(backend)
            status = status_of(run.paths, backend, state)
            monitor.check(state)
        except (OSError, StoreError) as error:  # tolerated for any time: a callback has no caller to raise it in
            errors.report(error)
        else:
            if status != last:
                yield status
            last = status
            if status.ended:
                return
        cancelled.wait(POLL)


def _run_callback(paths: RunPaths, function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except Exception:  # an error in the user's code must not stop the notifications
        log.exception("%s: a callback has failed", paths.root.name)
