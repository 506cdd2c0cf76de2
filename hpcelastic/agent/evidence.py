"""The events with which an agent records what it learns about the run, for those who look at it later."""

from collections.abc import Callable

from hpcelastic.network import News
from hpcelastic.protocol.events import Decided, Event, PeerSuspected, StateChanged
from hpcelastic.protocol.peers import PeerLinkLost, PeerRefused, PeerSilent
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.observation import Commit


class Evidence:
    """Logs versions of the register, and signs of the death of other nodes, by ``log``.

    Each method is called in one thread only, and different ones in different threads. ``state`` is the state in which
    the agent found the run.
    """

    def __init__(self, log: Callable[[Event], None], state: State) -> None:
        self._log = log
        self._version = 0
        self._formed = state.round
        """The last round whose members this agent has logged, because it has formed the round."""

        self._suspected: set[tuple[str, str]] = set()
        """The signs that were logged in this round, because reports are repeated."""

        self._round = state.round

    def observed(self, version: int, state: State) -> None:
        """Log the version of the register that the agent has read, if it is new."""
        if state.round != self._round:
            self._round, self._suspected = state.round, set()
        if version != self._version:
            self._version = version
            self._log(
                StateChanged(
                    version=version,
                    phase=state.phase,
                    round=state.round,
                    restarts=state.restarts,
                    reason=state.reason,
                    cause=state.cause,
                    lost=state.just_lost or None,
                )
            )

    def committed(self, commit: Commit) -> None:
        """Log a version that this agent has written. Called in the rendezvous thread."""
        state = commit.state
        forms = state.phase is Phase.RUNNING and state.round > self._formed
        if forms:
            self._formed = state.round
        self._log(
            Decided(
                version=commit.version,
                phase=state.phase,
                round=state.round,
                reason=state.reason,
                cause=state.cause,
                lost=state.just_lost or None,
                evidence=commit.evidence or None,
                silence=None if commit.silence is None else round(commit.silence, 3),
                members=tuple(participant.name for participant in state.participants) if forms else None,
            )
        )

    def notified(self, news: News) -> None:
        """Log a sign of the death of another node. Called in the thread of the network."""
        match news:
            case PeerLinkLost(node):
                self._suspect(node, "link lost")
            case PeerRefused(node):
                self._suspect(node, "refused")
            case PeerSilent(node):
                self._suspect(node, "silent")

    def _suspect(self, node: str, sign: str) -> None:
        if (node, sign) not in self._suspected:
            self._suspected.add((node, sign))
            self._log(PeerSuspected(peer=node, sign=sign))
