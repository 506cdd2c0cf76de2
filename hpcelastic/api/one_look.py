"""Repeated looks at a run whose filesystem may hang."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hpcelastic.storage.bounded import Hang, NotStarted, bounded

T = TypeVar("T")


class OneLook(Generic[T]):
    """Calls ``read`` with a time limit. While a call hangs no other one begins, so at most one thread is left.

    ``what`` names the call in the error message. Several threads may use this object.
    """

    def __init__(self, read: Callable[[], T], what: str) -> None:
        self._read, self._what = read, what
        self._lock = threading.Lock()
        self._hang = ""
        """The message about the call that hangs now; empty if none does."""

    def __call__(self, limit: float) -> T:
        """Return what ``read`` returns. Raises Hang after ``limit`` seconds, or while an earlier call hangs, and
        NotStarted if it cannot begin.
        """
        hang = self._hang
        if not self._lock.acquire(timeout=0 if hang else limit):
            raise Hang(hang or f"{self._what}: no answer within {limit:g} s")
        try:
            return bounded(self._call, limit, self._what)
        except Hang as error:
            if self._lock.locked():
                self._hang = str(error)
            raise
        except NotStarted:
            self._lock.release()
            raise

    def _call(self) -> T:
        try:
            return self._read()
        finally:
            self._hang = ""
            self._lock.release()
