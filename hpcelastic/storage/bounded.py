"""Calls with a time limit. A filesystem that hangs must not block its caller."""

import threading
from collections.abc import Callable
from typing import TypeVar

from hpcelastic.errors import StoreError

T = TypeVar("T")


class Hang(StoreError):
    """A call did not return in time. Its thread is abandoned, and ends with the process at the latest."""


class NotStarted(StoreError):
    """No thread could be started for a call."""


def bounded(function: Callable[[], T], limit: float, what: str) -> T:
    """Call ``function`` in a thread of its own and return its result.

    ``what`` names the call in the error message and the thread. Raises Hang after ``limit`` seconds, and NotStarted if
    there are too many threads.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=call, name=what, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NotStarted(f"{what}: {error}; raise the limit of processes of this user") from error
    thread.join(limit)
    if errors:
        raise errors[0]
    if not results:
        raise Hang(f"{what}: no answer within {limit:g} s; check that the filesystem is mounted and answers here")
    return results[0]
