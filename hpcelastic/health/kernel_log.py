"""The kernel's log. Source: the kernel's Documentation/ABI/testing/dev-kmsg."""

import contextlib
import os


def kernel_log() -> list[str]:
    """Return the records of the kernel's log; none if it may not be read."""
    records: list[str] = []
    with contextlib.suppress(OSError):
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    records.append(os.read(fd, 8192).decode(errors="replace"))
                except BrokenPipeError:  # the record was overwritten; the next read continues behind the gap
                    continue
        finally:
            os.close(fd)
    return records
