"""The address of a run's server, in the run's directory, where the user does not name it.

The agent that starts the server writes the address; the other agents, and readers, take it from there.
"""

import time
from dataclasses import dataclass

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

_POLL = 0.1
"""Seconds between two looks for an address that is awaited."""


@dataclass(frozen=True)
class ServerAddress:
    """Where the server of a run is, and which start of which job put it there."""

    address: str
    """HOST:PORT."""

    job: str = ""
    restart: int = 0
    """How often the job had been requeued."""


def write_address(paths: RunPaths, address: ServerAddress) -> None:
    """Let the other agents and readers know the address."""
    files.make_directory(paths.server.parent)
    files.publish(paths.server, files.to_json(encode(address)))


def remove_address(paths: RunPaths) -> None:
    """Forget the address: the server has ended."""
    files.remove(paths.server)


def read_address(paths: RunPaths) -> ServerAddress | None:
    """The address that was written last; None if there is none."""
    # By listing: an NFS client remembers that a name was absent.
    there = paths.server.name in files.names(paths.server.parent)
    document = files.read_json(paths.server) if there else None
    return decode(ServerAddress, document) if document is not None else None


def await_address(paths: RunPaths, job: str, restart: int, timeout: float) -> str:
    """The address once it is written; StoreError after ``timeout`` seconds.

    An address that was written before the ``job`` was started for the last time is not one.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = read_address(paths)
        if found is not None and not is_stale(found, job, restart):
            return found.address
        time.sleep(_POLL)
    raise StoreError(
        f"{paths.server}: the first node of the job has not written within {timeout:g} s where it serves the "
        "rendezvous; does an agent run there, and does it see this directory?"
    )


def is_stale(address: ServerAddress, job: str, restart: int) -> bool:
    """Whether an earlier start of the same job wrote the address."""
    return address.job == job and address.restart < restart
