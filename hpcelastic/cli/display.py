"""Progress of a run: a live panel in a terminal, plain lines elsewhere."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcelastic.api.follow import LogFollower
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.errors import StoreError
from hpcelastic.store.bounded import bounded

_LAST_LINES = 8
_PATIENCE = 5.0
"""Seconds that a look at the run's directory may take."""

_COLORS = {"succeeded": "green", "failed": "red", "closed": "red", "running": "cyan", "joining": "yellow"}


@contextlib.contextmanager
def display(run: Run, output: TextIO) -> Iterator[Callable[[], None]]:
    """A function that brings the display up to date, to be called now and then."""
    console = Console(file=output, highlight=False)
    news = _News(run)
    if not console.is_terminal:

        def tell() -> None:
            for line in news.look()[0]:
                print(line, file=output, flush=True)

        yield tell
        return
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def draw() -> None:
            lines, status = news.look()
            last.extend(lines)
            live.update(_panel(status, last), refresh=True)

        yield draw


class _News:
    """What has changed since the last look: the run's state, and new lines of the workers.

    A directory that fails or hangs is news too: the run may outlast that, and so must its display.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._status = run.status()
        self._said = ""
        self._follower = LogFollower(run.directory)
        self._follower.lines(rest=True)  # what was said before a resumed run was resumed

    def look(self) -> tuple[list[str], RunStatus]:
        try:
            lines, status = bounded(self._look, _PATIENCE, str(self._run.directory))
            said = f"{status.phase}, round {status.round}, world size {status.world_size}: {status.reason}"
            self._status = status
        except (OSError, StoreError) as error:
            lines, said = [], f"cannot see how the run does: {error}"
        if said != self._said:
            lines.append(f"--- {said}")
            self._said = said
        return lines, self._status

    def _look(self) -> tuple[list[str], RunStatus]:
        status = self._run.status()
        return self._follower.lines(), status


def _panel(status: RunStatus, last: deque[str]) -> Group:
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
    tail = (Text(f"  {line}", overflow="ellipsis", no_wrap=True) for line in last)
    return Group(head, Text(f"  {status.reason}", "dim"), table, *tail)
