"""The server of a run whose settings name none: an embedded etcd, or the first node of a job for ``static``."""

import contextlib
from collections.abc import Callable, Iterator

from hpcelastic.agent.node import Place
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import EMBEDDED, Settings
from hpcelastic.store.etcd_server import EtcdServer
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.server_address import (
    ServerAddress,
    await_address,
    is_stale,
    read_address,
    remove_address,
    write_address,
)

_PORTS = 20000
"""A job's static rendezvous is served at one of the 10,000 ports from here on, by the job's number."""

_TIMEOUT = 60.0
"""Seconds within which the first node of a job has written where it serves."""


@contextlib.contextmanager
def server_of(paths: RunPaths, settings: Settings, place: Place, report: Callable[[str], None]) -> Iterator[str]:
    """The address of the run's server where the settings name none, else an empty text.

    An embedded server is started here, and ended with the block. Raises ConfigError, StoreError.
    """
    if not settings.rendezvous.found:
        yield ""
    elif settings.rendezvous.endpoint == EMBEDDED:
        with embedded_server(paths, settings) as address:
            yield address
    else:
        yield _of_the_first_node(paths, place, report)


@contextlib.contextmanager
def embedded_server(paths: RunPaths, settings: Settings) -> Iterator[str]:
    """An etcd server on this machine that keeps its data in the run's directory; its address."""
    if settings.nodes.wanted > 1:
        raise ConfigError("rendezvous.endpoint is embedded, a server for one node, and nodes allows more: name one")
    server = EtcdServer(paths.backend.with_name("etcd"))
    try:
        write_address(paths, ServerAddress(server.endpoint))
        yield server.endpoint
    finally:
        server.stop()
        with contextlib.suppress(StoreError):  # a reader that finds nobody there takes the copy of the state
            remove_address(paths)


def _of_the_first_node(paths: RunPaths, place: Place, report: Callable[[str], None]) -> str:
    """The address of the job's first node, at which its agent serves: not srun's node, which may be a login node."""
    if not place.job.isdecimal():
        raise ConfigError("rendezvous.backend is static: outside of SLURM rendezvous.endpoint must be a HOST:PORT")
    there = read_address(paths)
    if there is not None and not is_stale(there, place.job, place.restart):
        return there.address
    if place.order:
        report("waiting for the first node of the job, which serves the rendezvous")
        return await_address(paths, place.job, place.restart, _TIMEOUT)
    host = f"[{place.address}]" if ":" in place.address else place.address
    ours = ServerAddress(f"{host}:{_PORTS + int(place.job) % 10000}", place.job, place.restart)
    write_address(paths, ours)
    return ours.address
