"""The server of a run whose settings name no server: an embedded etcd, or for ``static`` the first node of a job."""

import contextlib
from collections.abc import Callable, Iterator

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.backends.server_address import (
    ServerAddress,
    await_address,
    is_stale,
    read_address,
    remove_address,
    write_address,
)
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.network.sockets import endpoint
from hpcelastic.protocol.settings import EMBEDDED, Settings
from hpcelastic.storage.paths import RunPaths

_FIRST_PORT = 20000
"""The first of 10,000 ports. The job's number selects the port of its static rendezvous."""

_TIMEOUT = 60.0
"""Seconds within which the first node of a job must have written its address."""


@contextlib.contextmanager
def server_of(
    paths: RunPaths, settings: Settings, identity: NodeIdentity, report: Callable[[str], None]
) -> Iterator[str]:
    """Yield the address of the run's server where the settings name none, else an empty text.

    An embedded server is started here and stopped at the end of the block. Raises ConfigError, StoreError.
    """
    if not settings.rendezvous.discovers_endpoint:
        yield ""
    elif settings.rendezvous.endpoint == EMBEDDED:
        with embedded_server(paths, settings) as address:
            yield address
    else:
        yield _first_node_address(paths, identity, report)


@contextlib.contextmanager
def embedded_server(paths: RunPaths, settings: Settings) -> Iterator[str]:
    """Run an etcd server on this machine, with its data in the run's directory, and yield its address."""
    if settings.nodes.wanted > 1:
        raise ConfigError(
            "rendezvous.endpoint is embedded, a server for one node, and nodes allows more: name a server"
        )
    from hpcelastic.backends.etcd_server import EtcdServer  # here, because few runs have a server of their own

    server = EtcdServer(paths.backend.with_name("etcd"))
    try:
        write_address(paths, ServerAddress(server.endpoint))
        yield server.endpoint
    finally:
        server.stop()
        with contextlib.suppress(StoreError):  # a reader that cannot connect reads the copy of the state
            remove_address(paths)


def _first_node_address(paths: RunPaths, identity: NodeIdentity, report: Callable[[str], None]) -> str:
    """Return the address of the job's first node, whose agent serves. The node of srun may be a login node instead."""
    if not identity.job.isdecimal():
        raise ConfigError("rendezvous.backend is static: outside of SLURM rendezvous.endpoint must be a HOST:PORT")
    published = read_address(paths)
    if published is not None and not is_stale(published, identity.job, identity.restart):
        return published.address
    if identity.order:
        report("waiting for the first node of the job, which serves the rendezvous")
        return await_address(paths, identity.job, identity.restart, _TIMEOUT)
    address = endpoint(identity.address, _FIRST_PORT + int(identity.job) % 10000)
    own = ServerAddress(address, identity.job, identity.restart)
    write_address(paths, own)
    return own.address
