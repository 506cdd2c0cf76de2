"""The workers' output, as it grows."""

import re
from pathlib import Path

from hpcelastic.agent.output import LogTail
from hpcelastic.store.paths import RunPaths

_LOG = re.compile(r"round-(\d+)/rank-(\d+)\.(?:out|err)$")


class LogFollower:
    """Reads the logs of all rounds and ranks of a run, or of one ``round`` or ``rank``."""

    def __init__(self, directory: Path, rank: int | None = None, round: int | None = None) -> None:
        self._logs = RunPaths(directory).logs
        self._rank = rank
        self._round = round
        self._tails: dict[Path, LogTail] = {}

    def lines(self, *, rest: bool = False) -> list[str]:
        """Lines that are new since the last call, as ``[ROUND.RANK] LINE``; unfinished ones too if ``rest``."""
        found = []
        for path in sorted(self._logs.glob("round-*/rank-*.*")):
            name = _LOG.search(path.as_posix())
            if name is None:
                continue
            round, rank = int(name[1]), int(name[2])
            if self._rank in (None, rank) and self._round in (None, round):
                tail = self._tails.setdefault(path, LogTail(path))
                found += [f"[{round}.{rank}] {line}" for line in tail.read(rest=rest)]
        return found
