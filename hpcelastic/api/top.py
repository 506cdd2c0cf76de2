"""A live table of runs, for a terminal. Keys sort it, and open the explanation, the stacks and the logs of a run."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcelastic.api.one_look import OneLook
from hpcelastic.api.progress import Progress
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.errors import HpcElasticError

_REFRESH_INTERVAL = 2.0
"""Seconds between two updates."""

_TIMEOUT = 5.0
"""Seconds for reading the status of a run."""

_COLOURS = {"succeeded": "green", "failed": "red", "closed": "red", "running": "cyan", "joining": "yellow"}

_UNREADABLE = "unreadable"

_LAST_LINES = 40
"""Lines of the logs that are shown."""

HELP = "↑↓ choose   n p s sort by name, phase, step   w why   g goodput   t stacks   l logs   q quit"


@dataclass(frozen=True)
class Row:
    """A run in the table."""

    run: Run
    phase: str
    round: int
    nodes: int
    reason: str
    progress: Progress | None = None

    @property
    def name(self) -> str:
        return self.run.name


_ORDERS: dict[str, Callable[[Row], object]] = {
    "n": lambda row: row.name,
    "p": lambda row: (row.phase, row.name),
    "s": lambda row: (-(row.progress.step if row.progress else -1), row.name),
}
"""The orders of the table, by the key that chooses them."""

_OPENED = {"w": "why", "g": "goodput", "t": "stacks", "l": "logs"}
"""The keys that open a text about the chosen run."""


@dataclass
class TopModel:
    """The content of the table, and what the keys have chosen."""

    runs: Sequence[Run]
    rows: list[Row] = field(default_factory=list)
    order: str = "n"
    chosen: str = ""
    """The name of the chosen run."""

    opened: str = ""
    """The text that is shown in place of the table: a value of `_OPENED`; empty for the table."""

    ended: bool = False

    def __post_init__(self) -> None:
        self._looks = [OneLook(run.status, str(run.directory)) for run in self.runs]

    def refresh(self) -> None:
        """Read the status of all runs."""
        self.rows = [_row(run, look) for run, look in zip(self.runs, self._looks, strict=True)]
        self._sort()

    def press(self, key: str) -> None:
        """Do what a key asks for. Any key closes an opened text."""
        if self.opened:
            self.opened = ""
        elif key in ("q", "\x03", "\x1b"):
            self.ended = True
        elif key in _ORDERS:
            self.order = key
            self._sort()
        elif key in _OPENED and self.rows:
            self.opened = _OPENED[key]
        elif key in ("\x1b[A", "k"):
            self._move(-1)
        elif key in ("\x1b[B", "j"):
            self._move(1)

    @property
    def row(self) -> Row | None:
        """The chosen run."""
        return next((row for row in self.rows if row.name == self.chosen), None)

    def text(self) -> str:
        """Return the text that is opened."""
        assert self.row is not None
        run = self.row.run
        try:
            if self.opened == "why":
                return str(run.why())
            if self.opened == "goodput":
                return str(run.goodput())
            if self.opened == "stacks":
                return "\n".join(f"{node}:\n\n{text}" for node, text in run.stacks().items())
            return "\n".join(list(run.logs())[-_LAST_LINES:])
        except (HpcElasticError, OSError) as error:
            return str(error)

    def table(self) -> Group:
        """Return the table, in at most 80 columns where the terminal has no more."""
        table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
        for name, justify in (("RUN", "left"), ("PHASE", "left"), ("ROUND", "right"), ("NODES", "right")):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # two of rich's literals
        table.add_column("PROGRESS", ratio=1, no_wrap=True, overflow="ellipsis")
        for row in self.rows:
            text = str(row.progress) if row.progress and row.phase == "running" else row.reason
            phase = Text(row.phase, _COLOURS.get(row.phase, "white"))
            style = "reverse" if row.name == self.chosen else ""
            table.add_row(row.name, phase, str(row.round), str(row.nodes or ""), text, style=style)
        return Group(table, Text(), Text(HELP, "dim", no_wrap=True, overflow="ellipsis"))

    def _sort(self) -> None:
        self.rows.sort(key=_ORDERS[self.order])  # type: ignore[arg-type]  # values of one order are comparable
        if self.row is None and self.rows:
            self.chosen = self.rows[0].name

    def _move(self, by: int) -> None:
        names = [row.name for row in self.rows]
        if self.chosen in names:
            self.chosen = names[max(0, min(len(names) - 1, names.index(self.chosen) + by))]


def _row(run: Run, look: OneLook[RunStatus]) -> Row:
    try:
        status = look(_TIMEOUT)
    except (HpcElasticError, OSError) as error:  # a run that is damaged, or hangs, must not hide the others
        return Row(run, _UNREADABLE, 0, 0, str(error))
    nodes = sum(bool(node.ranks) for node in status.nodes) if status.phase == "running" else 0
    return Row(run, status.phase, status.round, nodes, status.reason, status.progress)


def top(runs: Sequence[Run]) -> None:
    """Show the table until a key ends it. Standard input and output must be a terminal."""
    model, console = TopModel(runs), Console(highlight=False)
    model.refresh()
    with _single_keys() as keys:
        while not model.ended:
            if model.opened:
                console.clear()
                console.print(Text(model.text()), Text("\nany key: back", "dim"))
                keys(None)
                model.opened = ""
            _show_table(model, console, keys)


def _show_table(model: TopModel, console: Console, keys: Callable[[float | None], str]) -> None:
    """Show the table until a key opens a text, or ends it."""
    with Live(model.table(), console=console, auto_refresh=False, screen=True) as live:
        due = time.monotonic() + _REFRESH_INTERVAL
        while not model.ended and not model.opened:
            model.press(keys(max(0.0, due - time.monotonic())))
            if time.monotonic() >= due:
                model.refresh()
                due = time.monotonic() + _REFRESH_INTERVAL
            live.update(model.table(), refresh=True)


@contextlib.contextmanager
def _single_keys() -> Iterator[Callable[[float | None], str]]:
    """Provide a function that waits some seconds, or for ever, for a key. It returns an empty text if there is none."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def key(timeout: float | None) -> str:
        ready, _, _ = select.select([fd], [], [], timeout)
        return os.read(fd, 16).decode(errors="replace") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
