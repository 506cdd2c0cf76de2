"""The backend that keeps a run in files of its directory."""

from collections.abc import Callable, Collection
from pathlib import Path

from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member
from hpcelastic.storage import files
from hpcelastic.storage.lease_names import first_ready_members, parse
from hpcelastic.storage.leases import Lease, LeaseObserver, OwnLease, read_leases
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register

_LOCK_TIMEOUT = 0.1
"""Seconds to wait for the lock of the register. If many nodes decide at once, one commits, and the others need not wait
for each other."""


_KEPT_VERSIONS = 500
"""Number of the newest versions of the register that stay. A round writes two or three. Each commit lists all names.

Version 1 stays too: the nonce and the time of a run are those of its first version.
"""


class FileBackend:
    """Files of the run's directory. No server is needed, and no process must stay alive."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    @property
    def root(self) -> Path:
        return self._paths.root

    def register(self, writer: str) -> Register:
        return Register(self._paths.register, writer, _KEPT_VERSIONS, lock_timeout=_LOCK_TIMEOUT, keep_first=True)

    def lease(self, node: str) -> OwnLease:
        return OwnLease(self._paths.leases, node)

    def observer(self, expiry: Expiry, clock: Callable[[], float]) -> LeaseObserver:
        return LeaseObserver(self._paths.leases, expiry, clock)

    def leases(self, node_name: str = "", *, processes: bool = False) -> dict[str, Lease]:
        return read_leases(self._paths.leases, node_name, processes=processes)

    def first_ready(self, count: int) -> tuple[int, list[Member]]:
        names = files.names(self._paths.leases)
        return len(names), first_ready_members(names, count)

    def remove_leases(self, nodes: Collection[str]) -> None:
        for name in files.names(self._paths.leases):
            if (lease := parse(name)) is not None and lease.node in nodes:
                (self._paths.leases / name).unlink(missing_ok=True)

    def close(self) -> None: ...
