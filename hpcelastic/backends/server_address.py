"""The address of a run's server, in the run's directory. It is used if the user does not name the server.

The agent that starts the server writes the address. The other agents and readers read it.
"""

import time
from dataclasses import dataclass

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

_POLL_INTERVAL = 0.1
"""Seconds between two polls for the address."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of a run's server, and the job start that wrote it."""

    address: str
    """HOST:PORT."""

    job: str = ""
    restart: int = 0
    """The number of requeues of the job before that start."""


def write_address(paths: RunPaths, address: ServerAddress) -> None:
    """Publish the address for the other agents and for readers."""
    files.make_directory(paths.server.parent, within=paths.root)
    files.publish(paths.server, files.to_json(encode(address)))


def remove_address(paths: RunPaths) -> None:
    """Remove the address after the server has ended."""
    files.remove(paths.server)


def read_address(paths: RunPaths) -> ServerAddress | None:
    """Return the newest address; None if there is none."""
    # Found by listing, because an NFS client caches that a name was absent.
    exists = paths.server.name in files.names(paths.server.parent)
    document = files.read_json(paths.server) if exists else None
    return decode(ServerAddress, document) if document is not None else None


def await_address(paths: RunPaths, job: str, restart: int, timeout: float) -> str:
    """Wait for the address and return it; StoreError after ``timeout`` seconds.

    An address from an earlier start of ``job`` is ignored.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = read_address(paths)
        if found is not None and not is_stale(found, job, restart):
            return found.address
        time.sleep(_POLL_INTERVAL)
    raise StoreError(
        f"{paths.server}: the first node of the job did not write the server's address within {timeout:g} s; check "
        "that an agent runs there and that it sees this directory"
    )


def is_stale(address: ServerAddress, job: str, restart: int) -> bool:
    """Return True if an earlier start of the same job wrote the address."""
    return address.job == job and address.restart < restart
