"""A register's history cut to its last versions, without letting a writer win that slept.

The danger: W has read version N and sleeps; others create N+1, N+2, ... and remove N+1; W wakes, creates N+1 and
believes that it has won. What prevents it:

- W drafts N+1 under a name that carries the number, *then* lists the directory, and links only if N is still newest.
- Who removes versions up to F first lists and removes every draft for a number up to F, then the versions, the oldest
  first. If a draft can't be removed, no version is.

Proof. Let W's link come after N+1 was removed. When W listed, N was the newest, so N+1 was created later than W's
draft. The sweep before N+1's removal began when N+1 was already superseded, so later still: it found the draft and
removed it. W's link then fails, for it names a draft that is gone (NFS links by file handle, and a server refuses a
file without names). Had W linked before the removal, it would have found N+1 there. No clock is needed.

A listing may lag, by about a second on some filesystems. So what is removed was seen superseded `SETTLE` seconds ago,
by the remover itself, on its own clock: both listings then show what the proof needs.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path

from hpcelastic.store import files

SETTLE = 5.0
"""Seconds for which a version has been seen superseded before it is removed: far above any lag of a listing."""

_TARGET = re.compile(r"v([0-9]+)\.json")


class Tail:
    """Keeps the last ``keep`` versions in ``directory``, and those superseded within `SETTLE` seconds of ``clock``.

    Threads may share it: what it has seen is replaced whole.
    """

    def __init__(self, directory: Path, keep: int, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._keep = max(1, keep)
        self._clock = clock
        self._sights: tuple[tuple[float, int], ...] = ()
        """When some version was seen to be the newest, and its number; the first is the last that has settled."""

        self._cut = 0
        """Up to this number nothing need be looked for."""

    def cut(self, newest: int, look: Callable[[], list[int]], path: Callable[[int], Path]) -> None:
        """Remove what need not be kept of the versions that ``look`` finds (ascending), each at its ``path``.

        Many at once, for each time costs a look. Raises StoreError where something can't be removed.
        """
        last = self._settled(newest) - self._keep
        if last - self._cut < self._keep:
            return
        numbers = look()
        old = numbers[: bisect_right(numbers, last)]
        if len(old) >= self._keep:
            self._sweep(last)
            self._remove(path(number) for number in old)
            files.stamp(self._directory)
        self._cut = last

    def _settled(self, newest: int) -> int:
        """The greatest number that was seen to be the newest `SETTLE` seconds ago or longer; 0 if none was."""
        now, sights = self._clock(), self._sights
        if not sights or now - sights[-1][0] >= SETTLE / 10:
            sights = (*sights, (now, newest))
        while len(sights) > 1 and now - sights[1][0] >= SETTLE:
            sights = sights[1:]
        self._sights = sights
        return sights[0][1] if now - sights[0][0] >= SETTLE else 0

    def _sweep(self, last: int) -> None:
        """Remove every draft for a number up to ``last``, whoever has left it or is about to link it."""
        found = ((name, _TARGET.fullmatch(target)) for name, target in files.drafts(self._directory).items())
        self._remove(self._directory / name for name, target in found if target and int(target[1]) <= last)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            files.remove(path)
