"""Calls with a time limit. The outcome of each call, also of one that hangs, is a result of the examination."""

import time
from collections.abc import Callable
from typing import TypeVar

from hpcelastic.doctor.measurements import Result, Trial
from hpcelastic.errors import StoreError
from hpcelastic.storage.bounded import Hang, bounded
from hpcelastic.storage.errnos import may_have_succeeded

T = TypeVar("T")

_ATTEMPTS = 8

_RETRY_INTERVAL = 0.05
"""Seconds."""


def run_trial(function: Callable[[], str], limit: float, what: str) -> Trial:
    """Run ``function`` for at most ``limit`` seconds and return its outcome.

    ``function`` returns a description of what is wrong, or an empty string. It is called again after a transient error,
    as the calls of a run are, so each call must start afresh.
    """
    try:
        wrong = bounded(lambda: retry_transient(function), limit, what)
    except Hang:
        return Trial(Result.HANGS, f"no answer within {limit:g} s")
    except OSError as error:
        return Trial(Result.FAILS, error.strerror or str(error))
    except (StoreError, NotImplementedError) as error:
        return Trial(Result.FAILS, str(error))
    return Trial(Result.FAILS, wrong) if wrong else Trial(Result.WORKS)


def retry_transient(call: Callable[[], T]) -> T:
    """Return ``call()``, and repeat the call after transient errors. ``call`` must be idempotent.

    It retries more often than a run does, because an examination must finish.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except (OSError, StoreError) as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            if isinstance(cause, OSError) and not may_have_succeeded(cause):
                raise
        time.sleep(_RETRY_INTERVAL)
    return call()
