"""The control page of this worker, and the marks that it writes there."""

import os

from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind

from .context import context, local_index

_open_page: tuple[str, ControlPage] | None = None


def own_control_page() -> ControlPage | None:
    """Return the control page that the agent shares with its workers; None outside hpcelastic or after its end."""
    global _open_page
    name = os.environ.get("HPCELASTIC_CONTROL_PAGE")
    if not name:
        return None
    if _open_page is None or _open_page[0] != name:
        try:
            _open_page = name, ControlPage.open(name)
        except OSError:
            return None
    return _open_page[1]


def mark(kind: MarkKind, value: int) -> None:
    """Write a mark, which the agent finds even if this process is killed. Does nothing outside hpcelastic."""
    page = own_control_page()
    if page is not None:
        page.marks(local_index()).write(context().round, kind, value)
