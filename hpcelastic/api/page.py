"""The HTML of runs in a notebook."""

from collections.abc import Iterable, Sequence
from html import escape

from hpcelastic.api.progress import Progress
from hpcelastic.api.status import RunStatus

_COLORS = {"succeeded": "#1a7f37", "failed": "#cf222e", "closed": "#cf222e"}
_OTHER = "#0969da"


def as_html(status: RunStatus, waits_for: str = "", lines: Iterable[str] = ()) -> str:
    """Return the status of a run and the last lines of its logs."""
    rows = (f"<tr>{_cells(node.name, node.node_state, node.ranks)}</tr>" for node in status.nodes)
    waits = f"<br>waits for {escape(waits_for or status.waits_for)}" if waits_for or status.waits_for else ""
    progress = _progress(status.progress) if status.progress else ""
    slow = f"<br>{escape(status.stragglers)}" if status.stragglers else ""
    log = "\n".join(map(escape, lines))
    return (
        f"<b>{escape(status.name)}</b> {_phase(status)}, round {status.round}, world size {status.world_size}, "
        f"restarts {status.restarts} of {status.max_restarts}<br>{escape(status.reason)}{waits}{slow}{progress}"
        f"<table><tr><th>node</th><th>state</th><th>ranks</th></tr>{''.join(rows)}</table>"
        f"<code>{escape(str(status.directory))}</code>" + (f"<pre>{log}</pre>" if log else "")
    )


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table. The first row is its header."""
    head = "".join(f"<th>{escape(text)}</th>" for text in rows[0])
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{_cells(*row)}</tr>' for row in rows[1:])}</table>"


def _progress(progress: Progress) -> str:
    """Return a bar, if the number of steps in all is known, and the progress as text."""
    bar = f'<progress value="{progress.share:.4f}"></progress> ' if progress.share is not None else ""
    return f"<br>{bar}{escape(str(progress))}"


def _phase(status: RunStatus) -> str:
    return f"<b style='color:{_COLORS.get(status.phase, _OTHER)}'>{escape(status.phase)}</b>"


def _cells(*texts: str) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)
