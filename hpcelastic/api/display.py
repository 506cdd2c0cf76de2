"""Progress of a run: drawn in place in a notebook and in a terminal, plain lines elsewhere."""

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
from rich.table import Table
from rich.text import Text

from hpcelastic.api.follow import LogFollower
from hpcelastic.api.jobs import live_jobs
from hpcelastic.api.page import as_html
from hpcelastic.api.presence import Presence
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus, status_of
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths

_LAST_LINES = 8
_PATIENCE = 5.0
"""Seconds that a look at the run's directory may take."""

_PACE = 0.5
"""Seconds between two looks."""

_SCHEDULER_PACE = 30.0
"""Seconds between two questions to SLURM, asked while no node has come."""

_COLORS = {"succeeded": "green", "failed": "red", "closed": "red", "running": "cyan", "joining": "yellow"}

Draw = Callable[[], RunStatus]
"""Brings a display up to date, and says how the run stands."""


def watch(run: Run, rank: int | None = None) -> None:
    """Show the run until it ends, or until an interrupt, which leaves it alone. RunFailed if nobody is left."""
    news = _News(run, rank, Presence(RunPaths(run.directory)))
    shown = _page(news) if _in_notebook() else _shown(news, sys.stdout)
    try:
        with shown as draw:
            while not draw().ended:
                time.sleep(_PACE)
    except KeyboardInterrupt:
        print(f"no longer watched; {run.name} goes on: hpcelastic.Run.open({run.name!r}).watch()", flush=True)


def display(run: Run, output: TextIO) -> AbstractContextManager[Draw]:
    """A function that brings the display in ``output`` up to date, to be called now and then."""
    return _shown(_News(run), output)


@contextlib.contextmanager
def _shown(news: "_News", output: TextIO) -> Iterator[Draw]:
    console = Console(file=output, highlight=False)
    if not console.is_terminal:

        def tell() -> RunStatus:
            for line in news.look():
                print(line, file=output, flush=True)
            return news.status

        yield tell
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def draw() -> RunStatus:
            news.look()
            live.update(_panel(news), refresh=True)
            return news.status

        yield draw


@contextlib.contextmanager
def _page(news: "_News") -> Iterator[Draw]:
    """In a notebook's cell."""
    ipython: Any = importlib.import_module("IPython.display")
    handle, before = ipython.display(ipython.HTML(""), display_id=True), ""

    def draw() -> RunStatus:
        nonlocal before
        news.look()
        page = as_html(news.status, news.waits_for, news.last)
        if page != before:
            handle.update(ipython.HTML(page))
            before = page
        return news.status

    yield draw


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class _News:
    """What has changed since the last look: the run's state, and new lines of the workers.

    A directory that fails or hangs is news too: the run may outlast that, and so must its display.
    """

    def __init__(self, run: Run, rank: int | None = None, presence: Presence | None = None) -> None:
        self._paths = RunPaths(run.directory)
        self._presence = presence
        self._follower = LogFollower(run.directory, rank)
        self._said = ""
        self._job = ""
        self._asked = -_SCHEDULER_PACE
        self.status = run.status()
        kept = self._follower.skip(_LAST_LINES if presence else 0)  # a run that is resumed begins with nothing
        self.last = deque(kept, maxlen=_LAST_LINES)

    @property
    def waits_for(self) -> str:
        """What the run waits for, in words; empty while workers run."""
        return "; ".join(part for part in (self.status.waits_for, self._job) if part)

    def look(self) -> list[str]:
        """New lines, those that tell of a change included."""
        try:
            lines, self.status = bounded(self._look, _PATIENCE, str(self._paths.root))
            self._job = self._slurm()
            waits = f"; waits for {self.waits_for}" if self.waits_for else ""
            said = f"{_head(self.status)}: {self.status.reason}{waits}"
        except (OSError, StoreError) as error:
            lines, said = [], f"cannot see how the run does: {error}"
        if said != self._said:
            lines.append(f"--- {said}")
            self._said = said
        self.last.extend(lines)
        return lines

    def _look(self) -> tuple[list[str], RunStatus]:
        state = read_state(self._paths)
        lines = self._follower.lines(rest=state.phase.final)
        if self._presence:
            self._presence.check(state)
        return lines, status_of(self._paths, state)

    def _slurm(self) -> str:
        """The state of the run's newest job, while that is all there is of it."""
        status = self.status
        if not status.waits_for or status.nodes or not status.jobs:
            return ""
        if time.monotonic() - self._asked < _SCHEDULER_PACE:
            return self._job
        self._asked, job = time.monotonic(), status.jobs[-1]
        try:
            state = bounded(lambda: live_jobs(self._paths), _PATIENCE, "SLURM").get(job, "has ended")
        except (SlurmError, StoreError):
            state = "unknown: SLURM does not answer"
        return f"SLURM job {job}: {state}"


def _head(status: RunStatus) -> str:
    return f"{status.phase}, round {status.round}, world size {status.world_size}"


def _panel(news: _News) -> Group:
    status = news.status
    head = Text.assemble(
        (status.name, "bold"),
        "  ",
        (status.phase, f"bold {_COLORS.get(status.phase, 'white')}"),
        f"  round {status.round}  world size {status.world_size}  restarts {status.restarts}/{status.max_restarts}",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for node in status.nodes:
        stand = Text(node.stand, _COLORS.get(node.stand, "white"))
        table.add_row(f"  {node.name}", stand, f"ranks {node.ranks}" if node.ranks else "")
    waits = [Text(f"  waits for {news.waits_for}", "yellow")] if news.waits_for else []
    tail = (Text(f"  {line}", overflow="ellipsis", no_wrap=True) for line in news.last)
    return Group(head, Text(f"  {status.reason}", "dim"), *waits, table, *tail)
