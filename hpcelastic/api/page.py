"""What a notebook shows of runs, in HTML."""

import html

from hpcelastic.api.status import RunStatus


def as_html(status: RunStatus) -> str:
    """How a run stands."""
    color = {"succeeded": "#1a7f37", "failed": "#cf222e", "closed": "#cf222e"}.get(status.phase, "#0969da")
    rows = "".join(
        f"<tr><td>{html.escape(n.name)}</td><td>{html.escape(n.stand)}</td><td>{html.escape(n.ranks)}</td></tr>"
        for n in status.nodes
    )
    return (
        f"<b>{html.escape(status.name)}</b> <b style='color:{color}'>{html.escape(status.phase)}</b>, "
        f"round {status.round}, world size {status.world_size}, "
        f"restarts {status.restarts} of {status.max_restarts}<br>{html.escape(status.reason)}"
        f"<table><tr><th>node</th><th>stand</th><th>ranks</th></tr>{rows}</table>"
        f"<code>{html.escape(str(status.directory))}</code>"
    )
