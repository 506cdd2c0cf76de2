"""The fencing token of this process: the round in which it may act for the run.

A process that stays for the next round gets a new token. What is left of its last round must not act with it: threads
that the script had started, and child processes, which have a copy of the old environment.
"""

import threading
from weakref import WeakKeyDictionary

from hpcelastic.errors import StoreError

from .context import context, local_index
from .control_page import own_control_page

_rounds_of_threads: "WeakKeyDictionary[threading.Thread, int]" = WeakKeyDictionary()
"""The round that has ended of each thread that was left over."""


def check_token() -> None:
    """Raise ``StoreError`` if the round of this thread or process has ended. Does nothing outside hpcelastic."""
    ended = _rounds_of_threads.get(threading.current_thread())
    if ended is not None:
        raise StoreError(
            f"this thread belongs to round {ended}, which has ended, and may not publish or use a store; start the "
            "thread anew in each round"
        )
    page, round = own_control_page(), context().round
    if page is not None and not page.is_granted(local_index(), round):
        raise StoreError(f"this process belongs to round {round}, which has ended; it may not publish or use a store")


def revoke_token(*, keep: threading.Thread) -> None:
    """Revoke the token of this process. All threads but the main thread and ``keep`` belong to its round for ever."""
    page, round = own_control_page(), context().round
    if page is not None:
        page.revoke(local_index())
    for thread in threading.enumerate():
        if thread not in (keep, threading.main_thread(), threading.current_thread()):
            _rounds_of_threads.setdefault(thread, round)
