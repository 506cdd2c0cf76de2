"""Follow the workers' output."""

import re
from pathlib import Path

from hpcelastic.agent.output import LogTail
from hpcelastic.storage.paths import RunPaths

_LINE = 200
"""Assumed bytes of a line, to read only the last lines of a log."""

_LOG = re.compile(r"round-(\d+)/rank-(\d+)\.(?:out|err)$")


class LogFollower:
    """Reads the logs of all rounds and ranks of a run, or of one ``round`` or ``rank``."""

    def __init__(self, directory: Path, rank: int | None = None, round: int | None = None) -> None:
        self._directory = directory
        self._rank = rank
        self._round = round
        self._tails: dict[Path, LogTail] = {}

    def lines(self, *, rest: bool = False) -> list[str]:
        """Return the new lines since the last call as ``[ROUND.RANK] LINE``; with ``rest``, unfinished lines too."""
        found = []
        for path, round, rank in self._logs():
            tail = self._tails.setdefault(path, LogTail(path))
            found += [f"[{round}.{rank}] {line}" for line in tail.read(rest=rest)]
        return found

    def skip(self, keep: int = 0) -> list[str]:
        """Skip the lines written so far. Returns the last ``keep`` of them, or fewer if they are long."""
        found: list[str] = []
        for path, round, rank in self._logs():
            try:
                size = path.stat().st_size
            except OSError:
                continue
            start = max(0, size - keep * _LINE)
            tail = self._tails[path] = LogTail(path, start)
            lines = tail.read(rest=True) if keep else []
            found += [f"[{round}.{rank}] {line}" for line in lines[start > 0 :]]
        return found[-keep:] if keep else []

    def _logs(self) -> list[tuple[Path, int, int]]:
        return [
            (path, round, rank)
            for path, round, rank in worker_logs(self._directory)
            if self._rank in (None, rank) and self._round in (None, round)
        ]


def worker_logs(directory: Path) -> list[tuple[Path, int, int]]:
    """Return the logs of all workers in the directory of a run, with round and rank, in this order."""
    paths = sorted(RunPaths(directory).logs.glob("round-*/rank-*.*"))
    named = ((path, _LOG.search(path.as_posix())) for path in paths)
    return [(path, int(name[1]), int(name[2])) for path, name in named if name]
