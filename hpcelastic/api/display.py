"""Show the progress of a run: updated in place in a notebook or terminal, plain lines elsewhere."""

import contextlib
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcelastic.api.follow import LogFollower
from hpcelastic.api.jobs import live_jobs
from hpcelastic.api.liveness import LivenessMonitor
from hpcelastic.api.one_look import OneLook
from hpcelastic.api.page import as_html
from hpcelastic.api.progress import Progress
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus, status_of
from hpcelastic.errors import RunFailed, SlurmError, StoreError
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.bounded import bounded

_LAST_LINES = 8
_TIMEOUT = 5.0
"""Seconds for reading the run's directory."""

_REFRESH_INTERVAL = 0.5
"""Seconds between two updates."""

_SLURM_POLL_INTERVAL = 30.0
"""Seconds between two queries to SLURM, while no node has joined."""

_COLORS = {"succeeded": "green", "failed": "red", "closed": "red", "running": "cyan", "joining": "yellow"}

Draw = Callable[[], RunStatus]
"""Updates a display, and returns the status of the run."""


def watch(run: Run, rank: int | None = None) -> None:
    """Show the run until it ends. An interrupt ends only the display. Raises RunFailed if no agent is left."""
    view = _ProgressView(run, rank, LivenessMonitor(run.reader))
    shown = _in_notebook(view) if _is_notebook() else _in_console(view, sys.stdout)
    try:
        with shown as draw:
            while not draw().ended:
                time.sleep(_REFRESH_INTERVAL)
    except KeyboardInterrupt:
        print(
            f"stopped watching; {run.name} continues; to watch it again: hpcelastic.Run.open({run.name!r}).watch()",
            flush=True,
        )


def display(run: Run, output: TextIO) -> AbstractContextManager[Draw]:
    """Return a context with a function that updates the display in ``output``. The caller calls it periodically."""
    return _in_console(_ProgressView(run), output)


@contextlib.contextmanager
def _in_console(view: "_ProgressView", output: TextIO) -> Iterator[Draw]:
    console = Console(file=output, highlight=False)
    if not console.is_terminal:

        def print_lines() -> RunStatus:
            for line in view.refresh():
                print(line, file=output, flush=True)
            return view.status

        yield print_lines
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def draw() -> RunStatus:
            view.refresh()
            live.update(_panel(view), refresh=True)
            return view.status

        yield draw


@contextlib.contextmanager
def _in_notebook(view: "_ProgressView") -> Iterator[Draw]:
    """Show the progress in the output of a notebook cell."""
    ipython: Any = importlib.import_module("IPython.display")
    handle, before = ipython.display(ipython.HTML(""), display_id=True), ""

    def draw() -> RunStatus:
        nonlocal before
        view.refresh()
        page = as_html(view.status, view.waits_for, view.last)
        if page != before:
            handle.update(ipython.HTML(page))
            before = page
        return view.status

    yield draw


def _is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class _ProgressView:
    """The run's status and the new lines of the workers since the last update.

    An error or a hang of the directory is shown, not raised, because the run may survive it. RunFailed is raised after
    the last lines were shown.
    """

    def __init__(self, run: Run, rank: int | None = None, monitor: LivenessMonitor | None = None) -> None:
        self._run = run.reader
        self._monitor = monitor
        self._follower = LogFollower(run.directory, rank)
        self._headline = ""
        self._slow: set[tuple[int, int]] = set()
        """The stragglers that were shown, by round and rank. One that comes and goes is shown once."""

        self._job_state = ""
        self._slurm_polled_at = -_SLURM_POLL_INTERVAL
        self._look = OneLook(self._read, str(run.directory))
        self._lines = deque[str]()
        """The lines that were read and not shown so far. A look that takes long adds them after its caller has left."""

        self._failed: RunFailed | None = None
        """Why the run cannot continue; None if it can."""

        self.status = run.status()
        kept = self._follower.skip(_LAST_LINES if monitor else 0)  # a resumed run starts without old lines
        self.last = deque(kept, maxlen=_LAST_LINES)

    @property
    def waits_for(self) -> str:
        """The condition that the run waits for, as text; empty while workers run."""
        return "; ".join(part for part in (self.status.waits_for, self._job_state) if part)

    def refresh(self) -> list[str]:
        """Return the new lines, with a line for each change of the status.

        The call that returns the last lines of a run without agents is followed by one that raises RunFailed.
        """
        if self._failed:
            raise self._failed
        found: RunStatus | OSError | StoreError
        try:
            found = self._look(_TIMEOUT)
        except RunFailed as error:
            found, self._failed = self.status, error
        except (OSError, StoreError) as error:
            found = error
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if isinstance(found, RunStatus):
            self.status = found
            self._job_state = self._query_slurm()
            waits = f"; waits for {self.waits_for}" if self.waits_for else ""
            headline = f"{_summary(found)}: {found.reason}{waits}"
        else:
            headline = f"cannot read the status of the run: {found}"
        if headline != self._headline:
            lines.append(f"--- {headline}")
            self._headline = headline
        ranks = {(self.status.round, rank) for rank in self.status.slow_ranks}
        if ranks - self._slow:
            lines.append(f"--- {self.status.stragglers}")
            self._slow |= ranks
        self.last.extend(lines)
        return lines

    def _read(self) -> RunStatus | OSError | StoreError:
        """Read the new lines. Return the status or why it cannot be read: the server of a run may end before it."""
        try:
            found = self._read_status()
        except RunFailed:
            self._lines.extend(self._follower.lines(rest=True))
            raise
        self._lines.extend(self._follower.lines(rest=isinstance(found, RunStatus) and found.ended))
        return found

    def _read_status(self) -> RunStatus | OSError | StoreError:
        try:
            backend = self._run.backend()
            state = read_state(backend)
            if self._monitor:
                self._monitor.check(state)
            return status_of(self._run.paths, backend, state)
        except (OSError, StoreError) as error:
            return error

    def _query_slurm(self) -> str:
        """Return the state of the run's newest job while no node has joined; else an empty text."""
        status = self.status
        if not status.waits_for or status.nodes or not status.jobs:
            return ""
        if time.monotonic() - self._slurm_polled_at < _SLURM_POLL_INTERVAL:
            return self._job_state
        self._slurm_polled_at, job = time.monotonic(), status.jobs[-1]
        try:
            state = bounded(lambda: live_jobs(self._run.paths), _TIMEOUT, "SLURM").get(job, "has ended")
        except (SlurmError, StoreError, OSError) as error:
            state = f"unknown ({error})"
        return f"SLURM job {job}: {state}"


def _summary(status: RunStatus) -> str:
    return f"{status.phase}, round {status.round}, world size {status.world_size}"


def _panel(view: _ProgressView) -> Group:
    status = view.status
    head = Text.assemble(
        (status.name, "bold"),
        "  ",
        (status.phase, f"bold {_COLORS.get(status.phase, 'white')}"),
        f"  round {status.round}  world size {status.world_size}  restarts {status.restarts}/{status.max_restarts}",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for node in status.nodes:
        node_state = Text(node.node_state, _COLORS.get(node.node_state, "white"))
        table.add_row(f"  {node.name}", node_state, node.part)
    waits = [Text(f"  waits for {view.waits_for}", "yellow")] if view.waits_for else []
    slow = [Text(f"  {status.stragglers}", "yellow")] if status.stragglers else []
    progress = [*_bar(status.progress)] if status.progress else []
    tail = (Text(f"  {line}", overflow="ellipsis", no_wrap=True) for line in view.last)
    return Group(head, Text(f"  {status.reason}", "dim"), *progress, *waits, *slow, table, *tail)


def _bar(progress: Progress) -> Iterator[Text | ProgressBar]:
    """Yield a bar, if the number of steps in all is known, and the progress as text."""
    if progress.share is not None:
        yield ProgressBar(total=1.0, completed=progress.share, width=40)
    yield Text(f"  {progress}")
