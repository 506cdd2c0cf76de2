"""Follow the workers' output."""

import re
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.agent.output import LogTail
from hpcelastic.storage.paths import RunPaths

_LINE = 200
"""Assumed bytes of a line, to read only the last lines of a log."""

_ROUND = re.compile(r"round-(\d+)")
_LOG = re.compile(r"round-(\d+)/rank-(\d+)\.(?:out|err)$")


class LogFollower:
    """Reads the logs of all rounds and ranks of a run, or of one ``round`` or ``rank``.

    The workers of a round that is older than the newest but one have ended. Their logs are looked at only once more.
    """

    def __init__(self, directory: Path, rank: int | None = None, round: int | None = None) -> None:
        self._directory = directory
        self._rank = rank
        self._round = round
        self._tails: dict[Path, LogTail] = {}
        self._first = 0
        """The oldest round whose logs may still grow."""

    def lines(self, *, rest: bool = False) -> Iterator[str]:
        """Yield the new lines since the last call as ``[ROUND.RANK] LINE``; with ``rest``, unfinished lines too."""
        logs = self._logs(0 if rest else self._first)
        self._first = _first_growing(logs)
        for path, round, rank in logs:
            tail = self._tails.setdefault(path, LogTail(path))
            for line in tail.read(rest=rest or round < self._first):
                yield f"[{round}.{rank}] {line}"

    def skip(self, keep: int = 0) -> list[str]:
        """Skip the lines written so far. Returns the last ``keep`` of them, or fewer if they are long."""
        found: list[str] = []
        logs = self._logs()
        self._first = _first_growing(logs)
        for path, round, rank in logs:
            try:
                size = path.stat().st_size
            except OSError:
                continue
            start = max(0, size - keep * _LINE)
            tail = self._tails[path] = LogTail(path, start)
            if keep:  # else the logs are not read
                lines = [*tail.read(rest=True)]
                found += [f"[{round}.{rank}] {line}" for line in lines[start > 0 :]]
        return found[-keep:] if keep else []

    def _logs(self, first: int = 0) -> list[tuple[Path, int, int]]:
        return [
            (path, round, rank)
            for path, round, rank in worker_logs(self._directory, first)
            if self._rank in (None, rank) and self._round in (None, round)
        ]


def worker_logs(directory: Path, first: int = 0) -> list[tuple[Path, int, int]]:
    """Return the logs of all workers of round ``first`` and later ones in the directory of a run, with round and rank,
    in this order.
    """
    rounds = sorted(RunPaths(directory).logs.glob("round-*"))
    growing = (each for each in rounds if (name := _ROUND.fullmatch(each.name)) and int(name[1]) >= first)
    paths = (path for each in growing for path in sorted(each.glob("rank-*.*")))
    named = ((path, _LOG.search(path.as_posix())) for path in paths)
    return [(path, int(name[1]), int(name[2])) for path, name in named if name]


def _first_growing(logs: list[tuple[Path, int, int]]) -> int:
    """Return the newest round but one: the oldest round whose logs may still grow."""
    return max((round for _, round, _ in logs), default=0) - 1
