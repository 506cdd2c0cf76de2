"""A run as a person holds it: how it does, what it said, what it gave."""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.api import steering
from hpcelastic.api.failed import raise_failure
from hpcelastic.api.follow import LogFollower
from hpcelastic.api.jobs import end_jobs
from hpcelastic.api.page import as_html
from hpcelastic.api.prepare import whoami
from hpcelastic.api.presence import Presence
from hpcelastic.api.registry import holds_run, locate
from hpcelastic.api.status import RunStatus, read_status
from hpcelastic.api.watching import POLL, aside, tell
from hpcelastic.errors import ConfigError
from hpcelastic.health.incidents import forgive
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.rendezvous import close_run, read_state
from hpcelastic.store import files
from hpcelastic.store.events import read_events
from hpcelastic.store.paths import RunPaths


class Run:
    """A run, known by its directory; it lives on whatever becomes of this object.

    Examples:
        A run that was started before, in whatever process:

        >>> run = hpcelastic.Run.open("digits")
        >>> run.status().phase
        'succeeded'
        >>> for line in run.logs(rank=0):
        ...     print(line)
        [1.0] trained
    """

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
        return self._wait(timeout, threading.Event())

    def _wait(self, timeout: float | None, unwanted: threading.Event) -> RunStatus:
        deadline = None if timeout is None else time.monotonic() + timeout
        presence = Presence(self._paths)
        while not (state := read_state(self._paths)).phase.final and not unwanted.is_set():
            presence.check(state)
            left = POLL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                how = f"{state.phase.value}, {state.reason}"
                raise TimeoutError(f"{self.name} has not ended after {timeout:g} s: {how}")
            unwanted.wait(min(POLL, left))
        return self.status()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait, then return what each rank returned, None for scripts, by rank. Raises RunFailed, TimeoutError.

        The cause of a RunFailed is the exception that the function has raised, on its `rank` and `node`. What other
        ranks of that round, or ranks of earlier rounds, have returned is in the run's directory, in ``results``.
        """
        return self._result(timeout, threading.Event())

    def _result(self, timeout: float | None, unwanted: threading.Event) -> list[Any]:
        self._wait(timeout, unwanted)
        state = read_state(self._paths)
        if state.phase is not Phase.SUCCEEDED:
            raise_failure(self._paths, state)
        ranks = range(sum(p.local_world_size for p in state.participants))
        return [_returned(self._paths, state.round, rank) for rank in ranks]

    def __await__(self) -> Generator[Any, None, RunStatus]:
        """``await run`` is `wait` for asyncio: other tasks go on, and it can be cancelled at once, the run going on."""
        return self.wait_async().__await__()

    async def wait_async(self, timeout: float | None = None) -> RunStatus:
        """`wait` for asyncio."""
        return await aside(lambda unwanted: self._wait(timeout, unwanted))

    async def result_async(self, timeout: float | None = None) -> list[Any]:
        """`result` for asyncio."""
        return await aside(lambda unwanted: self._result(timeout, unwanted))

    def add_done_callback(self, function: Callable[["Run"], object]) -> Callable[[], None]:
        """Call ``function`` with this run once it has ended, or nobody is left to end it; returns what calls that off.

        It is called in a daemon thread of this process, also if the run has ended before. What it raises is logged.
        """
        return tell(self._paths, None, lambda: function(self))

    def on_change(self, function: Callable[[RunStatus], object]) -> Callable[[], None]:
        """Call ``function`` with the status, now and whenever it has changed; returns what calls that off.

        It is called in a daemon thread of this process. What it raises is logged, and it is called again.
        """
        return tell(self._paths, function, None)

    def watch(self, *, rank: int | None = None) -> None:
        """Show how the run does, and the last lines of its logs or of one ``rank``'s, until it ends or Ctrl-C.

        Drawn in place in a notebook and in a terminal, in lines elsewhere. Ctrl-C, or the notebook's stop button, ends
        the watching, not the run. Raises RunFailed as `wait`.
        """
        from hpcelastic.api.display import watch

        watch(self, rank)

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
            time.sleep(POLL / 4)

    def events(self) -> list[dict[str, Any]]:
        """All that its agents noted, by time."""
        return read_events(self._paths.events)

    def forgive(self, *nodes: str) -> tuple[str, ...]:
        """Let what went wrong on ``nodes``, or on all, keep them out no longer; those that were held to account."""
        return forgive(self._paths, nodes or None)

    def drain(self, *nodes: str, undo: bool = False) -> tuple[str, ...]:
        """Keep ``nodes``, given by name or by machine, out of this run, or with ``undo`` let them in again.

        Their workers come to a step's end, their agents leave, the others go on. Returns all that are drained now.
        Raises ConfigError for nodes that are not there.
        """
        return steering.drain(self._paths, nodes, undo=undo)

    def checkpoint(self, *, anyway: bool = False) -> None:
        """End the round that runs at a step's end, where workers save; the next one follows at once.

        Raises ConfigError where no round runs; and where its workers do not ask `hpcelastic.training.should_stop`, and
        would only be stopped, unless that is wanted ``anyway``.
        """
        steering.checkpoint(self._paths, anyway=anyway)

    def scale(self, nodes: int) -> "steering.Scaled":
        """Let rounds have ``nodes`` nodes from now on: surplus ones leave at a step's end, missing ones are submitted
        to SLURM as jobs of one node each. What comes of it, which is one line as a text.

        Raises ConfigError for fewer than ``nodes.min``, and for more than there are where SLURM was not asked for
        them; SlurmError.
        """
        return steering.scale(self._paths, nodes)

    def cancel(self) -> RunStatus:
        """End the run for good: its workers, its agents, its SLURM jobs. Raises SlurmError if SLURM does not answer."""
        close(self._paths)
        end_jobs(self._paths)
        return self.status()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Run {self.name}: {status.phase}, round {status.round}, {status.reason}>"

    def _repr_html_(self) -> str:
        return as_html(self.status())


def close(paths: RunPaths) -> None:
    """End the run for good; its agents end by that, and the jobs in which they run. Jobs that wait are still there."""
    with bell_from_outside(paths, whoami()) as bell:
        close_run(paths, whoami(), f"cancelled by {whoami()}", bell)


def _returned(paths: RunPaths, round: int, rank: int) -> Any:
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
