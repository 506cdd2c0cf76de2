"""The interface between the rendezvous and the place that keeps it.

A backend provides a register, leases and an observer of the leases. The rendezvous protocol is the same over all
backends. `hpcelastic.backends.files` keeps a run in files of its directory. `hpcelastic.backends.records` keeps it in a
server. `hpcelastic.backends.connect` opens the backend of a run.

A process opens the backend where it enters the run or begins to read it, passes it to everything that uses it, and
closes it at the end.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member, Seen
from hpcelastic.storage.leases import Lease
from hpcelastic.storage.register import Version


class AnyRegister(Protocol):
    """A versioned value that is changed by compare-and-set; see `hpcelastic.storage.register.Register`."""

    @property
    def where(self) -> str:
        """The place of the register, for messages."""

    def read(self) -> Version:
        """Return the newest version."""

    def open(self, number: int) -> Version | None:
        """Return version ``number`` or a newer one, if that costs less than `read`; None if it cannot be read."""

    def assume(self, number: int) -> None:
        """Take version ``number``, which the caller knows from elsewhere, as read; `read` may return no value of it."""

    def commit(self, after: int, value: Any) -> bool:
        """Make ``value`` version ``after`` + 1; return False if that number is taken."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Return a lock that reduces contention. Correctness does not depend on it."""


class AnyLease(Protocol):
    """The lease of this node; see `hpcelastic.storage.leases.OwnLease`."""

    def renew(self, member: Member, duration: float | None = None) -> None:
        """Publish the next heartbeat. The lease then holds for ``duration`` seconds from the call."""


class AnyObserver(Protocol):
    """An observer of the leases of all nodes; see `hpcelastic.storage.leases.LeaseObserver`."""

    def observe(self, expected: Iterable[str], *, complete: bool = False) -> Mapping[str, Seen]:
        """Return all nodes that have a lease, and the nodes that are ``expected`` to have one.

        If ``complete``, leases that are not shown because they are renewed at this moment are looked for once more.
        """

    def admit(self, nodes: Iterable[str]) -> None:
        """Record that ``nodes`` are members of a round that has begun since the last listing: they were alive then."""

    def expires(self, node: str) -> float:
        """Return the time from which an unchanged lease proves that the node is dead; infinity if it was never seen."""

    def silence(self, node: str) -> float | None:
        """Return the seconds since a renewal of the node's lease was seen last; None if its lease was never seen."""

    def limit(self) -> float:
        """Return the time in seconds after which the leases of all living nodes have expired if they do not change."""

    def lease_versions(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Look at the leases of some nodes, and return for each that is shown a text that changes with the lease.

        That takes much less time than `observe`, which takes no account of it.
        """


class Backend(Protocol):
    """The place that keeps the rendezvous of one run. Several threads of a process may use it."""

    @property
    def root(self) -> Path:
        """The run's directory."""

    def register(self, writer: str) -> AnyRegister:
        """Return the register of the run's state."""

    def lease(self, node: str) -> AnyLease:
        """Return the lease of ``node``, for its owner."""

    def observer(self, expiry: Expiry, clock: Callable[[], float]) -> AnyObserver:
        """Return an observer of the leases. ``clock`` returns seconds."""

    def leases(self, node_name: str = "", *, processes: bool = False) -> Mapping[str, Lease]:
        """Return all leases by node; with ``node_name``, only those of the nodes with that name.

        Without ``processes``, `Member.process` may be empty, and the leases of many nodes are read much faster.
        """

    def first_ready(self, count: int) -> tuple[int, list[Member]]:
        """Return the number of leases, and the first ``count`` ready nodes in their order."""

    def remove_leases(self, nodes: Collection[str]) -> None:
        """Remove the leases of agents that have ended. An agent that is alive after all writes its lease again.

        A backend may keep them. Raises StoreError or OSError.
        """

    def close(self) -> None:
        """Release the backend. This process does not use it afterwards."""
