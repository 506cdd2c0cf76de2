"""The handle of a run: its status, its logs, its results."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.api import steering
from hpcelastic.api.failed import raise_failure
from hpcelastic.api.follow import LogFollower
from hpcelastic.api.goodput import Goodput, goodput_of
from hpcelastic.api.html_report import Report, report_of
from hpcelastic.api.incidents import forgive
from hpcelastic.api.jobs import end_jobs
from hpcelastic.api.liveness import LivenessMonitor
from hpcelastic.api.page import as_html
from hpcelastic.api.registry import holds_run, locate, runs_in
from hpcelastic.api.sharing import is_ours
from hpcelastic.api.stacks import stacks
from hpcelastic.api.status import RunStatus, read_status
from hpcelastic.api.submissions import provenance
from hpcelastic.api.watching import POLL, ErrorTolerance, run_in_thread, start_watcher
from hpcelastic.api.why import Why, why, why_all
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import ConfigError, RunFailed
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.events import read_event_lines
from hpcelastic.storage.paths import RunPaths


class Run:
    """A handle of the run in a directory. The run does not depend on this object.

    Examples:
        A run that another process may have started:

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
            raise ConfigError(
                f"{self._paths.root}: contains no run; `hpcelastic list DIRECTORY` lists the runs in a directory"
            )
        self._reader = RunReader(self._paths)
        weakref.finalize(self, self._reader.close)

    @classmethod
    def open(cls, run: str | PathLike[str], *, runs: str | PathLike[str] = "runs") -> "Run":
        """Open an existing run by its directory, by its name in ``runs``, or by its name alone, in this order.

        The name alone finds the newest run with this name that this user has started, from every directory. Raises
        ConfigError with the known names if there is no such run.
        """
        return cls(locate(os.fspath(run), Path(runs)))

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._paths.root

    @property
    def name(self) -> str:
        return self._paths.root.name

    @property
    def reader(self) -> RunReader:
        """The files and the backend of the run, for the commands and displays of this package."""
        return self._reader

    def status(self) -> RunStatus:
        """Return the status of the run, from its directory only."""
        return read_status(self._reader)

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has ended with any result. Raises TimeoutError after ``timeout`` seconds.

        Raises RunFailed if no agent is left and SLURM has no job of the run. Raises StoreError if its directory cannot
        be read, or if this becomes impossible for ten minutes.
        """
        return self._wait(timeout, threading.Event())

    def _wait(self, timeout: float | None, cancelled: threading.Event) -> RunStatus:
        deadline = None if timeout is None else time.monotonic() + timeout
        monitor, errors = LivenessMonitor(self._reader), ErrorTolerance(self.name)

        def look() -> State | RunStatus:
            state = _checked_state(self._reader, monitor)
            return self.status() if state.phase.final else state

        while not isinstance(found := errors.attempt(look), RunStatus) and not cancelled.is_set():
            left = POLL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                how = f"{found.phase.value}, {found.reason}" if found else "its directory cannot be read"
                raise TimeoutError(f"{self.name} has not ended after {timeout:g} s: {how}")
            cancelled.wait(min(POLL, left))
        return found if isinstance(found, RunStatus) else self.status()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait, then return the return values by rank, or None for scripts. Raises RunFailed, TimeoutError.

        The cause of a RunFailed is the exception of the function; `rank` and `node` are its place. The return values of
        other ranks in that round, and of earlier rounds, are in the run's directory, in ``results``.
        """
        return self._result(timeout, threading.Event())

    def _result(self, timeout: float | None, cancelled: threading.Event) -> list[Any]:
        self._wait(timeout, cancelled)
        state = read_state(self._reader.backend())
        if state.phase is not Phase.SUCCEEDED:
            raise_failure(self._paths, state)
        ranks = range(state.world_size)
        return [_return_value(self._paths, state.round, rank) for rank in ranks]

    def __await__(self) -> Generator[Any, None, RunStatus]:
        """``await run`` is `wait` for asyncio. A cancellation takes effect at once and does not affect the run."""
        return self.wait_async().__await__()

    async def wait_async(self, timeout: float | None = None) -> RunStatus:
        """`wait` for asyncio."""
        return await run_in_thread(lambda cancelled: self._wait(timeout, cancelled))

    async def result_async(self, timeout: float | None = None) -> list[Any]:
        """`result` for asyncio."""
        return await run_in_thread(lambda cancelled: self._result(timeout, cancelled))

    def add_done_callback(self, function: Callable[["Run"], object]) -> Callable[[], None]:
        """Call ``function`` with this run when it has ended or no agent and job is left.

        Returns a function that cancels this. The call is in a daemon thread of this process, also if the run has ended
        before. Its exceptions are logged.
        """
        return start_watcher(self._paths, None, lambda: function(self))

    def on_change(self, function: Callable[[RunStatus], object]) -> Callable[[], None]:
        """Call ``function`` with the status, now and after each change. Returns a function that cancels this.

        The calls are in a daemon thread of this process. Exceptions are logged, and the calls continue.
        """
        return start_watcher(self._paths, function, None)

    def watch(self, *, rank: int | None = None) -> None:
        """Show the status of the run and the last lines of its logs, or of one ``rank``, until it ends or Ctrl-C.

        The display is updated in place in a notebook or terminal, and printed as lines elsewhere. Ctrl-C, or the stop
        button of the notebook, ends the display, not the run. Raises RunFailed like `wait`.
        """
        from hpcelastic.api.display import watch

        watch(self, rank)

    def logs(self, rank: int | None = None, *, round: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines of the workers' logs, of all ranks or one, oldest round first.

        With ``follow``, waits for new lines until the run ends. Raises RunFailed like `wait`, after all written lines.
        """
        follower, errors = LogFollower(self._paths.root, rank, round), ErrorTolerance(self.name)
        monitor = LivenessMonitor(self._reader) if follow else None
        while True:
            try:
                state = errors.attempt(lambda: _checked_state(self._reader, monitor))
            except RunFailed:
                yield from follower.lines(rest=True)
                raise
            final = not follow or (state is not None and state.phase.final)
            yield from follower.lines(rest=final)
            if final:
                return
            time.sleep(POLL / 4)

    def events(self) -> list[dict[str, Any]]:
        """Return all events of the agents, sorted by time."""
        return read_event_lines(self._paths.events)

    def provenance(self) -> list[dict[str, Any]]:
        """Return what each submission of the run was made from: the commit, changed files, versions of packages.

        The keys of each are those of ``submissions/NUMBER/provenance.json`` in the run's directory.
        """
        return provenance(self._paths)

    def why(self, round: int | None = None) -> Why:
        """Return why a round has ended; by default the last one that a fault has ended, else the newest one.

        It needs only the run's directory. Raises ConfigError if there is no such round.
        """
        return why(self._reader, round)

    def why_all(self) -> list[Why]:
        """Return why each round has ended."""
        return why_all(self._reader)

    def goodput(self) -> Goodput:
        """Return what the time of the run's nodes went into, from its directory only, up to now if it has not ended.

        ``print`` shows it as text, and a notebook as a table. Raises StoreError if the files cannot be read.
        """
        return goodput_of(self._reader)

    def report(self) -> Report:
        """Return a report of the run: figures, a timeline of its nodes, and each fault with its cause and cost.

        It is one HTML file, which ``save(PATH)`` writes and a notebook shows. Raises StoreError.
        """
        return report_of(self._reader)

    def forgive(self, *nodes: str) -> tuple[str, ...]:
        """Ignore the incidents of ``nodes``, or of all nodes, from now on. Returns the nodes that had incidents."""
        return forgive(self._paths, nodes or None)

    def drain(self, *nodes: str, undo: bool = False) -> tuple[str, ...]:
        """Remove ``nodes``, by node name or machine name, from this run. With ``undo``, allow them again.

        Their workers complete a step, their agents leave, and the other nodes continue. Returns all drained nodes.
        Raises ConfigError for unknown nodes.
        """
        return steering.drain(self._reader, nodes, undo=undo)

    def checkpoint(self, *, anyway: bool = False) -> None:
        """End the current round at the end of a step, where workers save. The next round follows at once.

        Raises ConfigError if no round runs. Raises ConfigError too if the workers do not call
        `hpcelastic.training.should_stop` and would stop without saving, unless ``anyway``.
        """
        steering.checkpoint(self._reader, anyway=anyway)

    def scale(self, nodes: int) -> "steering.ScaleResult":
        """Set the number of nodes of rounds. Returns the result, whose ``str()`` is one line of text.

        Surplus nodes leave at the end of a step. Missing nodes are submitted to SLURM as jobs of one node each. Raises
        ConfigError for fewer nodes than ``nodes.min``, and for more nodes than present if the run was not submitted to
        SLURM. Raises SlurmError.
        """
        return steering.scale(self._reader, nodes)

    def stacks(self, timeout: float = 10.0) -> dict[str, str]:
        """Return the stacks of the workers of the running round as text, by node. The round continues.

        If a round is forming, it waits for it. Raises ConfigError if no round runs within ``timeout`` seconds, and
        StoreError if a node has not answered by then.
        """
        return stacks(self._reader, timeout)

    def cancel(self) -> RunStatus:
        """End the run permanently: its workers, agents and SLURM jobs. Raises SlurmError if SLURM does not answer.

        A run of another user of the group ``run.group`` is ended by its agents, and their jobs end with them.
        """
        steering.cancel(self._reader)
        if is_ours(self._paths):
            end_jobs(self._reader)
        return self.status()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Run {self.name}: {status.phase}, round {status.round}, {status.reason}>"

    def _repr_html_(self) -> str:
        return as_html(self.status())


def _checked_state(run: RunReader, monitor: LivenessMonitor | None) -> State:
    """Return the state of a run. Raises RunFailed if ``monitor`` finds no agent and no job of it."""
    state = read_state(run.backend())
    if monitor is not None and not state.phase.final:
        monitor.check(state)
    return state


def _return_value(paths: RunPaths, round: int, rank: int) -> Any:
    try:
        return values.load(paths.result(round, rank))
    except KeyError:
        return None


def find_runs(directory: Path) -> list[Run]:
    """Return the runs in a directory, sorted by name. Raises StoreError if it cannot be read."""
    return [Run(path) for path in runs_in(directory)]
