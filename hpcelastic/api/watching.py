"""Runs watched from threads and from asyncio, so that the filesystem holds nobody who does something else meanwhile.

The threads are daemons: one that a dead filesystem holds does not keep its process alive.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hpcelastic.api.presence import Presence
from hpcelastic.api.status import RunStatus, status_of
from hpcelastic.errors import RunFailed, StoreError
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.store.paths import RunPaths

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two looks at a run's directory."""


async def aside(work: Callable[[threading.Event], T]) -> T:
    """What ``work`` returns, from a thread of its own; when this is cancelled, its event says that nobody waits."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    unwanted = threading.Event()

    def call() -> None:
        deliver: Callable[[], None]
        try:
            deliver = functools.partial(future.set_result, work(unwanted))
        except BaseException as error:  # raised again where somebody waits
            deliver = functools.partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_unless_done, future, deliver)

    threading.Thread(target=call, name="hpcelastic await", daemon=True).start()
    try:
        return await future
    finally:
        unwanted.set()


def _unless_done(future: "asyncio.Future[Any]", deliver: Callable[[], None]) -> None:
    if not future.done():
        deliver()


def tell(
    paths: RunPaths, changed: Callable[[RunStatus], object] | None, ended: Callable[[], object] | None
) -> Callable[[], None]:
    """Call ``changed`` with each new status, and ``ended`` at the end, in a thread; returns what calls that off."""
    unwanted = threading.Event()

    def watch() -> None:
        with contextlib.suppress(RunFailed):  # nobody is left: that is an end too
            for status in _changes(paths, unwanted):
                if changed and not unwanted.is_set():
                    _call(paths, changed, status)
        if ended and not unwanted.is_set():
            _call(paths, ended)

    threading.Thread(target=watch, name=f"hpcelastic {paths.root.name}", daemon=True).start()
    return unwanted.set


def _changes(paths: RunPaths, unwanted: threading.Event) -> Iterator[RunStatus]:
    """The run's status, and again whenever it has changed, to the end. RunFailed if nobody is left to end it."""
    presence, last, trouble = Presence(paths), None, ""
    while not unwanted.is_set():
        try:
            state = read_state(paths)
            status = status_of(paths, state)
            presence.check(state)
        except (OSError, StoreError) as error:  # the run may outlast that, and so do we
            if str(error) != trouble:
                log.warning("cannot see how %s does: %s", paths.root.name, error)
            trouble = str(error)
        else:
            if status != last:
                yield status
            last = status
            if status.ended:
                return
        unwanted.wait(POLL)


def _call(paths: RunPaths, function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except Exception:  # the user's code: told, and no reason to stop telling
        log.exception("%s: a callback has failed", paths.root.name)
