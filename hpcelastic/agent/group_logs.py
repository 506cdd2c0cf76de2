"""The log files of the workers of one node in one round, and what of them is copied to the agent's output."""

import os
import sys
from pathlib import Path
from string import Template
from typing import IO, TypeAlias

from hpcelastic.agent.environment import ROLE, RunFacts
from hpcelastic.agent.output import Tee
from hpcelastic.agent.settings import LogSettings
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.state import name_of
from hpcelastic.storage import files, modes
from hpcelastic.storage.bounded import bounded

_OPEN_TIMEOUT = 5.0
"""Seconds that the shared filesystem may take to open a round's logs."""

_DEV_NULL = Path(os.devnull)
"""Destination of streams that are neither kept nor shown."""

_Files: TypeAlias = dict[Path, IO[bytes]]


class GroupLogs:
    """The logs of the workers of ``part``."""

    def __init__(self, part: Assignment, settings: LogSettings, run: RunFacts) -> None:
        self._part, self._settings, self._run = part, settings, run
        self._files: _Files = {}
        self._tee = Tee()

    def open(self) -> None:
        """Open the files of all streams. If that fails there are none, because workers start without logs as well."""
        try:
            self._files = bounded(self._open, _OPEN_TIMEOUT, f"{self._run.paths.logs}")
        except (OSError, StoreError) as error:
            print(f"no logs of round {self._part.round}: {error}; its workers' output appears here", file=sys.stderr)
        else:
            for local_rank, stream in self._redirected_streams():
                self._copy(local_rank, stream)
        if self._settings.local_ranks:
            self._files[_DEV_NULL] = _DEV_NULL.open("ab")

    def start_copying(self) -> None:
        """Copy lines to the agent's output from now on, as far as the settings say so."""
        self._tee.start()

    def stop_copying(self) -> None:
        """Copy what is left, and stop."""
        self._tee.stop()

    def close(self) -> None:
        """Close the files. The workers keep theirs."""
        for file in self._files.values():
            file.close()

    def stream(self, local_rank: int, stream: str) -> IO[bytes] | None:
        """Return the file of a stream, ``out`` or ``err``; None if the worker shares the agent's own stream."""
        file = self._files.get(self._path(local_rank, stream))
        return self._files.get(_DEV_NULL) if file is None and self._settings.hides(local_rank) else file

    def error_log(self, local_rank: int) -> Path | None:
        """Return the path of a worker's standard error; None if that goes to no file."""
        path = self._path(local_rank, "err")
        return path if path in self._files else None

    def _path(self, local_rank: int, stream: str) -> Path:
        paths, part = self._run.paths, self._part
        if part.early:
            return paths.early_log(name_of(self._run.node), local_rank, stream)
        return paths.log(part.round, part.rank_of(local_rank), stream)

    def _open(self) -> _Files:
        paths, part = self._run.paths, self._part
        directory = paths.early_logs if part.early else paths.round_logs(part.round)
        files.make_directory(directory, within=paths.root)  # error files go there in any case
        found = [self._path(local_rank, stream) for local_rank, stream in self._redirected_streams()]
        mode = "wb" if part.early else "ab"  # an early log is that of the last early start
        logs = {path: path.open(mode) for path in found}
        for log in logs.values() if modes.is_shared(directory) else ():
            modes.share(log.fileno())
        return logs

    def _redirected_streams(self) -> list[tuple[int, str]]:
        """Return the local rank and name of each stream that goes to a file."""
        ranks, logs = self._part.local_ranks, self._settings
        return [(rank, stream) for rank in ranks for stream in ("out", "err") if logs.to_file(rank, stream)]

    def _copy(self, local_rank: int, stream: str) -> None:
        """Let the tee copy a log to the agent's output, or matching lines to a file, if the settings say so."""
        path, prefix = self._path(local_rank, stream), self._prefix(local_rank)
        if self._settings.shown(local_rank, stream):
            self._tee.follow(path, prefix, sys.stdout if stream == "out" else sys.stderr)
        if texts := self._settings.matches(stream):
            matches = self._run.paths.matches(self._part.round, name_of(self._run.node), stream)
            self._tee.follow(path, prefix, matches, texts)

    def _prefix(self, local_rank: int) -> str:
        part = self._part
        rank, role = "early" if part.early else str(part.rank_of(local_rank)), part.role or ROLE
        return Template(self._settings.prefix).safe_substitute(rank=rank, local_rank=local_rank, role_name=role)
