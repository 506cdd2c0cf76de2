"""The part of an observer of leases that does not depend on the place that keeps them."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from hpcelastic.protocol.liveness import Liveness
from hpcelastic.protocol.settings import Expiry

V = TypeVar("V")


class LivenessObserver(Generic[V]):
    """Answers questions about the leases that were seen, by the monotonic ``clock`` of this process (seconds).

    ``duration`` and ``follows`` are those of `Liveness`.
    """

    def __init__(
        self,
        expiry: Expiry,
        clock: Callable[[], float],
        duration: Callable[[V], float | None],
        follows: Callable[[V, V], bool],
    ) -> None:
        self._clock = clock
        self._liveness = Liveness[V](expiry, duration, follows)

    def admit(self, nodes: Iterable[str]) -> None:
        """Record that ``nodes`` are members of a round that has begun since the last listing."""
        self._liveness.admit(nodes, self._clock())

    def expires(self, node: str) -> float:
        """Return the time from which an unchanged lease proves that the node is dead; infinity if it was never seen."""
        return self._liveness.expires(node)

    def silence(self, node: str) -> float | None:
        """Return the seconds since a renewal of the node's lease was seen last; None if its lease was never seen."""
        renewed = self._liveness.renewed_at(node)
        return None if renewed is None else self._clock() - renewed

    def limit(self) -> float:
        """Return the time in seconds after which the leases of all living nodes have expired if they do not change."""
        return self._liveness.limit()
