"""The agent's part in the requests of a group for the run: see `hpcelastic.rendezvous.requests`."""

import contextlib
import time
from collections.abc import Callable

from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.agent.periodic import PeriodicTask
from hpcelastic.agent.session import Session
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.backends.connect import open_backend
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
        self._session = session
        self._task = PeriodicTask("group requests", _INTERVAL, clock)
        try:
            self._shared = modes.is_shared(session.spec.paths.root)
        except OSError:  # a directory that fails is reported elsewhere
            self._shared = False

    def seconds_left(self) -> float | None:
        """Return the seconds until the next look; None if this node does not look."""
        return self._task.seconds_left()

    def observe(self, state: State) -> None:
        """Take account of the newest state of the run."""
        first = [participant.node for participant in state.participants[:_SERVERS]]
        serves = state.phase is not Phase.RUNNING or self._session.member.node in first
        self._task.plan(self._shared and serves)

    def check(self, _found: WorkersOfRound) -> None:
        """Look for requests if that is due. Returns at once."""
        if self._task.is_due():
            self._task.begin(self._look)

    def close(self) -> None:
        """Wait for the last answer, but not long."""
        self._task.close(_CLOSE_TIMEOUT)

    def _look(self) -> None:
        paths = self._session.spec.paths
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
