"""Calls that an examination makes: each comes to an end, and what became of it is a result."""

import time
from collections.abc import Callable
from typing import TypeVar

from hpcelastic.doctor.measurements import Result, Trial
from hpcelastic.errors import StoreError
from hpcelastic.store.bounded import Hang, bounded
from hpcelastic.store.errnos import doubtful

T = TypeVar("T")

_TRIES = 8
_PAUSE = 0.05
"""Seconds."""


def tried(function: Callable[[], str], limit: float, what: str) -> Trial:
    """What became of ``function``, which returns what is wrong, in words, or nothing.

    It is called again after an error that passes, as our own calls are; it must be able to begin anew.
    """
    try:
        wrong = bounded(lambda: persistently(function), limit, what)
    except Hang:
        return Trial(Result.HANGS, f"no answer within {limit:g} s")
    except OSError as error:
        return Trial(Result.FAILS, error.strerror or str(error))
    except (StoreError, NotImplementedError) as error:
        return Trial(Result.FAILS, str(error))
    return Trial(Result.FAILS, wrong) if wrong else Trial(Result.WORKS)


def persistently(call: Callable[[], T]) -> T:
    """``call()``, again after errors that pass, more often than a run would: an examination must come to its end.

    It must be idempotent.
    """
    for _ in range(_TRIES - 1):
        try:
            return call()
        except (OSError, StoreError) as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            if isinstance(cause, OSError) and not doubtful(cause):
                raise
        time.sleep(_PAUSE)
    return call()
