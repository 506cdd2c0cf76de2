"""The agent's part in the requests of a group for the run: see `hpcelastic.rendezvous.requests`."""

import contextlib
import threading
import time
from collections.abc import Callable

from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.agent.session import Session
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.backends.connect import open_backend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import GroupRequest
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.requests import Executed, execute_requests
from hpcelastic.storage import modes
from hpcelastic.storage.mailbox import Mailbox

_SERVERS = 3
"""Number of nodes of a running round that look for requests."""

_INTERVAL = 3.0
"""Seconds between two looks of a node."""

_CLOSE_TIMEOUT = 2.0
"""Seconds for which the end of an agent waits for its last answer."""


class GroupRequests:
    """Looks for requests of the group of a shared run, and executes them.

    While a round runs, its first nodes look. Else every node does.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._clock = session, clock
        try:
            self._shared = modes.is_shared(session.spec.paths.root)
        except OSError:  # a directory that fails is reported elsewhere
            self._shared = False
        self._due: float | None = None
        """The time of the next look; None unless this node looks."""

        self._thread: threading.Thread | None = None

    def seconds_left(self) -> float | None:
        """Return the seconds until the next look; None if this node does not look."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def observe(self, state: State) -> None:
        """Take account of the newest state of the run."""
        first = [participant.node for participant in state.participants[:_SERVERS]]
        serves = state.phase is not Phase.RUNNING or self._session.member.node in first
        if not (self._shared and serves):
            self._due = None
        elif self._due is None:
            self._due = self._clock() + _INTERVAL

    def check(self, _found: WorkersOfRound) -> None:
        """Look for requests if that is due. Returns at once."""
        if self._due is None or self._clock() < self._due:
            return
        self._due = self._clock() + _INTERVAL
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="group requests", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the last answer, but not long."""
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)

    def _look(self) -> None:
        """Execute the requests, in a thread of its own, because the filesystem may hang."""
        paths = self._session.spec.paths
        with contextlib.suppress(StoreError):  # a directory that fails is reported elsewhere
            if Mailbox(paths).empty:
                return
            with (
                contextlib.closing(open_backend(paths)) as backend,
                outside_notifier(paths, self._session.member.name) as notifier,
            ):
                execute_requests(paths, backend, notifier, self._executed)

    def _executed(self, executed: Executed) -> None:
        what = str(executed.request) if executed.request else "something unknown"
        refused = f", which was refused: {executed.error}" if executed.error else ""
        self._session.report(f"{executed.author} has requested: {what}{refused}")
        self._session.log(GroupRequest(author=executed.author, request=what, refusal=executed.error))
