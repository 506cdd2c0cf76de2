"""Removal of old versions of a register, safe against a writer that slept.

The danger: W has read version N and sleeps. Others create N+1, N+2, ... and remove N+1. W wakes, creates N+1 and
believes that it has won. Two rules prevent this:

- W drafts N+1 under a name that carries the number, *then* lists the directory, and links only if N is still the newest
  version.
- A remover of the versions up to F first lists and removes every draft for a number up to F. Then it removes the
  versions, the oldest first. If it can't remove a draft, it removes no version.

Proof. Let W link after N+1 was removed. When W listed, N was the newest version, so N+1 was created later than W's
draft. The removal of drafts before the removal of N+1 began when N+1 was already superseded, so later still: it found
W's draft and removed it. W's link then fails, because it names a draft that no longer exists (NFS links by file handle,
and a server refuses a file without names). If W had linked before the removal, it would have found N+1. The proof needs
no clock.

A listing may lag, by about a second on some filesystems. Therefore a version is removed only if the remover itself saw
it superseded `SETTLE_DELAY` seconds ago, by its own clock. Both listings then show what the proof needs.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path

from hpcelastic.storage import files

SETTLE_DELAY = 5.0
"""Seconds between the first sight of a version as superseded and its removal. Far above any lag of a listing."""

_BATCH = 16
"""Number of versions that are removed at once, at least. Each removal costs a listing, and delays the writer."""

_TARGET = re.compile(r"v([0-9]+)\.json")


class HistoryTrimmer:
    """Removes old versions from ``directory``.

    The last ``keep`` versions stay, and those that were superseded within the last `SETTLE_DELAY` seconds by ``clock``.
    With ``keep_first``, version 1 stays too.
    Threads may share a trimmer: its observations are replaced as a whole.
    """

    def __init__(self, directory: Path, keep: int, clock: Callable[[], float], *, keep_first: bool = False) -> None:
        self._directory = directory
        self._keep_until = 1 if keep_first else 0
        self._keep, self._batch = max(1, keep), max(1, min(keep, _BATCH))
        self._clock = clock
        self._observations: tuple[tuple[float, int], ...] = ()
        """Times at which some version was seen to be the newest, and its number. The first is the last settled one."""

        self._trimmed_to = 0
        """Versions up to this number need no further removal."""

    def trim(self, newest: int, list_numbers: Callable[[], list[int]], path: Callable[[int], Path]) -> None:
        """Remove old versions among those that ``list_numbers`` returns (ascending), each at its ``path``.

        Versions are removed in batches. Raises StoreError if a file can't be removed.
        """
        last = self._newest_settled(newest) - self._keep
        if last - self._trimmed_to < self._batch:
            return
        numbers = list_numbers()
        old = [number for number in numbers[: bisect_right(numbers, last)] if number > self._keep_until]
        if len(old) >= self._batch:
            self._remove_drafts(last)
            self._remove(path(number) for number in old)
            files.touch_directory(self._directory)
        self._trimmed_to = last

    def _newest_settled(self, newest: int) -> int:
        """Return the greatest number that was seen as the newest at least `SETTLE_DELAY` seconds ago; 0 if none was."""
        now, observations = self._clock(), self._observations
        if not observations or now - observations[-1][0] >= SETTLE_DELAY / 10:
            observations = (*observations, (now, newest))
        while len(observations) > 1 and now - observations[1][0] >= SETTLE_DELAY:
            observations = observations[1:]
        self._observations = observations
        return observations[0][1] if now - observations[0][0] >= SETTLE_DELAY else 0

    def _remove_drafts(self, last: int) -> None:
        """Remove every draft for a number up to ``last``, including drafts that a writer is about to link.

        Drafts of versions that stay are left: without hard links, such a version is a link to its draft.
        """
        found = ((name, _TARGET.fullmatch(target)) for name, target in files.drafts(self._directory).items())
        self._remove(
            self._directory / name for name, target in found if target and self._keep_until < int(target[1]) <= last
        )

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            files.remove(path)
