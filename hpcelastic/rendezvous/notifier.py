"""The interface by which a rendezvous notifies other nodes. Correctness does not depend on any notification."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from hpcelastic.protocol.state import Member, Participant


class Notifier(Protocol):
    """Notifies other nodes of changes, so that they learn of them before their next poll."""

    def notify(self, nodes: Iterable[Member | Participant], version: int, change: bytes = b"") -> None:
        """Notify ``nodes`` that ``version`` is the newest known one. Returns at once.

        ``change`` is the difference from the version before; see `hpcelastic.protocol.changes`.
        """

    def watch(self, members: Sequence[Participant], version: int) -> None:
        """Detect failures of the neighbours among the ``members`` of a round, and notify them in the same way."""

    @property
    def healthy(self) -> bool:
        """Whether all neighbours are connected, so that no notification can be missed."""


class NoNotifier:
    """A notifier that notifies no node."""

    healthy = False

    def notify(self, nodes: Iterable[Member | Participant], version: int, change: bytes = b"") -> None: ...

    def watch(self, members: Sequence[Participant], version: int) -> None: ...
