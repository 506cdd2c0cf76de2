"""Memory in which a worker writes the stack of its main thread when its agent sends a signal.

The interpreter writes it in the signal handler, by `faulthandler`. So a worker writes it also while it waits in a
collective, or holds the interpreter lock. No file of the shared filesystem is involved. The main thread executes the
handler, and its own stack does not change meanwhile. The stacks of other threads do: to read them crashes the process
once in about a hundred times.
"""

import os
import signal

SIGNAL = signal.SIGRTMAX - 2
"""The signal at which a worker writes its stack. A process without a handler for it would be ended by it."""


class StackMemory:
    """The memory of one seat. The agent owns it."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("hpcelastic-stacks", os.MFD_CLOEXEC)

    @property
    def variable(self) -> str:
        """The value of the environment variable by which a worker finds the memory: ``SIGNAL:PATH``."""
        return f"{SIGNAL}:/proc/{os.getpid()}/fd/{self._fd}"

    def clear(self) -> None:
        """Remove what a worker has written."""
        os.ftruncate(self._fd, 0)

    def read(self) -> str:
        """Return what a worker has written."""
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Release the memory."""
        os.close(self._fd)
