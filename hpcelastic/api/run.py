"""A run as a person holds it: how it does, what it said, what it gave."""

import os
import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.api.follow import LogFollower
from hpcelastic.api.jobs import end_jobs
from hpcelastic.api.page import as_html
from hpcelastic.api.prepare import whoami
from hpcelastic.api.presence import Presence
from hpcelastic.api.registry import holds_run, locate
from hpcelastic.api.status import RunStatus, read_status
from hpcelastic.errors import ConfigError, RunFailed
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.rendezvous import close_run, read_state
from hpcelastic.store import files
from hpcelastic.store.events import read_events
from hpcelastic.store.paths import RunPaths

_POLL = 1.0
"""Seconds between two looks at the run's directory while waiting."""


class Run:
    """A run, known by its directory; it lives on whatever becomes of this object."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        self._paths = RunPaths(Path(directory).absolute())
        if not holds_run(self._paths.root):
            raise ConfigError(f"{self._paths.root}: holds no run; `hpcelastic list DIRECTORY` shows those there are")

    @classmethod
    def open(cls, run: str | PathLike[str], *, runs: str | PathLike[str] = "runs") -> "Run":
        """A run that was started before, by whatever process: its directory, its name in ``runs``, or its name alone.

        Names are looked for in this order; the last way finds, from every directory, the newest run of that name that
        this person has started. Raises ConfigError, with the names that are known, if there is none.
        """
        return cls(locate(os.fspath(run), Path(runs)))

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._paths.root

    @property
    def name(self) -> str:
        return self._paths.root.name

    def status(self) -> RunStatus:
        """How the run stands, from its directory alone."""
        return read_status(self._paths)

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has ended, however; TimeoutError after ``timeout`` seconds.

        Raises RunFailed if nobody is left to end it: all agents are gone, and SLURM has no job of the run.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        presence = Presence(self._paths)
        while not (state := read_state(self._paths)).phase.final:
            presence.check(state)
            left = _POLL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                how = f"{state.phase.value}, {state.reason}"
                raise TimeoutError(f"{self.name} has not ended after {timeout:g} s: {how}")
            time.sleep(min(_POLL, left))
        return self.status()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait, then return what each rank returned, None for scripts, by rank. Raises RunFailed, TimeoutError."""
        self.wait(timeout)
        state = read_state(self._paths)
        if state.phase is not Phase.SUCCEEDED:
            raise RunFailed(f"{self.name} has {state.phase.value}: {state.reason}", state.failures)
        ranks = range(sum(p.local_world_size for p in state.participants))
        return [_result(self._paths, state.round, rank) for rank in ranks]

    def logs(self, rank: int | None = None, *, round: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of the workers' logs, oldest round first; all ranks, or one; with ``follow`` until the run ends.

        Raises RunFailed as `wait`, once all that was written has been given.
        """
        follower, presence = LogFollower(self._paths.root, rank, round), Presence(self._paths)
        while True:
            state = read_state(self._paths)
            final = not follow or state.phase.final
            yield from follower.lines(rest=final)
            if final:
                return
            presence.check(state)
            time.sleep(_POLL / 4)

    def events(self) -> list[dict[str, Any]]:
        """All that its agents noted, by time."""
        return read_events(self._paths.events)

    def cancel(self) -> RunStatus:
        """End the run for good: its workers, its agents, its SLURM jobs. Raises SlurmError if SLURM does not answer."""
        with bell_from_outside(self._paths, whoami()) as bell:
            close_run(self._paths, whoami(), f"cancelled by {whoami()}", bell)
        end_jobs(self._paths)
        return self.status()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Run {self.name}: {status.phase}, round {status.round}, {status.reason}>"

    def _repr_html_(self) -> str:
        return as_html(self.status())


def _result(paths: RunPaths, round: int, rank: int) -> Any:
    try:
        return values.load(paths.result(round, rank))
    except KeyError:
        return None


def find_runs(directory: Path) -> list[Run]:
    """The runs in a directory, by name. StoreError if it can't be read."""
    return [
        Run(directory / name)
        for name in sorted(files.names(directory))
        if not name.startswith(".") and holds_run(directory / name)
    ]
