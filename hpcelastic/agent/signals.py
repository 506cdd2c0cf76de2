"""Signal handlers that are installed for the duration of a block."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int


@contextlib.contextmanager
def signal_handlers(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Install ``handlers`` for the duration of the block, and restore the previous handlers afterwards.

    Only the main thread of a process may install handlers. In another thread nothing changes: the program that owns the
    main thread handles the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)  # None: not installed from Python
