"""Handlers of signals, for as long as a block lasts."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int


@contextlib.contextmanager
def handled(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Within the block signals go to ``handlers``, afterwards to those of before.

    Only a process's main thread may set handlers. In another thread nothing is changed: whoever runs the main thread
    sees to signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)  # None: it was not Python's
