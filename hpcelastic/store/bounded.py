"""Calls that may hang, waited for only so long: a filesystem that does not answer must not take its caller with it."""

import threading
from collections.abc import Callable
from typing import TypeVar

from hpcelastic.errors import StoreError

T = TypeVar("T")


class Hang(StoreError):
    """A call has not returned in time. Its thread is abandoned, and ends with the process at the latest."""


def bounded(function: Callable[[], T], limit: float, what: str) -> T:
    """``function()``, called in a thread of its own; Hang if it takes more than ``limit`` seconds."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again where it can be dealt with
            errors.append(error)

    thread = threading.Thread(target=call, name=what, daemon=True)
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    if not results:
        raise Hang(f"{what}: no answer within {limit:g} s; check that the filesystem is mounted and answers here")
    return results[0]
