"""The wait for descriptors that become readable."""

import select
from collections.abc import Iterable
from typing import Protocol

LONGEST = 2e6
"""The longest wait in seconds. The kernel takes milliseconds of 32 bits, less than 25 days."""


class Source(Protocol):
    """An object with a descriptor that becomes readable when an event occurs."""

    def fileno(self) -> int:
        """Return the descriptor."""


def readable(sources: Iterable[Source | int], timeout: float | None) -> set[int]:
    """Wait up to ``timeout`` seconds until a source is readable. Return the descriptors of those that are."""
    poll = select.poll()  # select() accepts no descriptor above 1023
    for source in sources:
        poll.register(source, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if timeout is None else 1000 * min(timeout, LONGEST))}
