"""What an agent notes of nodes that go wrong, its own and others, for the decisions that come after it."""

import contextlib
import threading
import time
from collections.abc import Callable

from hpcelastic.errors import StoreError
from hpcelastic.health.causes import machines_fault
from hpcelastic.health.incidents import Incident, Trouble, note
from hpcelastic.health.memory import note_losses
from hpcelastic.protocol.state import Failure, Member, Participant, Phase, State
from hpcelastic.store.paths import RunPaths


class Witness:
    """Notes incidents, in threads that nobody waits for: the filesystem may hang. What can't be noted is lost.

    Does nothing unless ``enabled``.
    """

    def __init__(self, paths: RunPaths, member: Member, *, enabled: bool) -> None:
        self._paths = paths
        self._node, self._machine = member.node, member.machine
        self._enabled = enabled
        self._round = 0
        self._members: tuple[Participant, ...] = ()
        """Those of the last round that this node has seen."""

        self._threads: list[threading.Thread] = []

    def learned(self, state: State) -> None:
        """The run stands at ``state``: where a round has formed that this node leads, note who was lost before it.

        Only who was in the last round itself can tell: had none of its members come through, their job has ended.
        """
        if not self._enabled or state.phase is not Phase.RUNNING or state.round == self._round:
            return
        before = self._members if state.round == self._round + 1 else ()
        self._round, self._members = state.round, state.participants
        if state.participants[0].node == self._node and any(p.node == self._node for p in before):
            self._in_background(lambda: note_losses(self._paths, before, state))

    def failed(self, failure: Failure) -> Trouble | None:
        """A worker has failed here: note it if that was the machine's fault, and say how certain that is."""
        if not self._enabled:
            return None
        cause = machines_fault(failure.exit_code, failure.message, failure.traceback)
        if cause is not None:
            said = f"rank {failure.rank}: {failure.message}"
            incident = Incident(self._machine, cause, said, time.time(), failure.round)
            self._in_background(lambda: note(self._paths, incident))
        return cause

    def others_suffice(self, least: int) -> bool:
        """Whether the round has at least ``least`` nodes without this one."""
        return len(self._members) > least

    def close(self, timeout: float) -> None:
        """Give what is being noted at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _in_background(self, noting: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(StoreError, OSError):
                noting()

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="witness", daemon=True))
        self._threads[-1].start()
