"""The network as a notifier of an agent's rendezvous."""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

from hpcelastic.errors import StoreError
from hpcelastic.network import (
    Network,
    News,
    Peer,
    Transfer,
    shared_key,
)
from hpcelastic.protocol.peers import linked
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.state import Member, Participant
from hpcelastic.storage.paths import RunPaths, safe_name


class NetworkNotifier:
    """`hpcelastic.rendezvous.notifier.Notifier` over the ``network`` of ``node``."""

    def __init__(self, network: Network, node: str) -> None:
        self._network, self._node = network, node
        self._members: Sequence[Participant] = ()
        self._peers: list[Peer] = []
        self._version = -1

    @property
    def healthy(self) -> bool:
        # The only member of a round leads it: it polls every few seconds in any case, and has no peer to watch.
        return self._network.healthy or len(self._members) == 1

    def notify(self, nodes: Iterable[Member | Participant], version: int, change: bytes = b"") -> None:
        self._network.notify(map(peer_of, nodes), version, change)

    def watch(self, members: Sequence[Participant], version: int) -> None:
        peers = self._peers if members is self._members else [*map(peer_of, self._neighbours(members))]
        if (peers, version) != (self._peers, self._version):
            self._network.watch(peers, version)
        self._members, self._peers, self._version = members, peers, version

    def _neighbours(self, members: Sequence[Participant]) -> list[Participant]:
        """Return the neighbours of this node in the ring of those ``members`` that have a network."""
        nodes, ports = column(members, "node"), column(members, "notification_port")
        if self._node not in nodes or not ports[own := nodes.index(self._node)]:
            return []
        ring = range(len(ports)) if all(ports) else [rank for rank, port in enumerate(ports) if port]
        return [members[ring[there]] for there in linked(ring.index(own), len(ring))]


def open_network(
    paths: RunPaths,
    member: Member,
    heard: Callable[[News], None],
    transfer: Callable[[Transfer], None],
    report: Callable[[str], None],
    ports: Sequence[int],
    interval: float,
) -> Network | None:
    """Return the network of an agent. If it cannot be opened, report that and return None: files alone suffice."""
    try:
        return Network(shared_key(paths.key), member.node, member.address, heard, transfer, ports, interval)
    except OSError as error:
        report(f"no network notifications: {error}; this node polls the run's directory instead")
        return None


@contextlib.contextmanager
def outside_notifier(paths: RunPaths, name: str) -> Iterator[NetworkNotifier | None]:
    """Provide a notifier to a process that is not a node of the run; None if the network cannot be opened."""
    try:
        key = shared_key(paths.key)
        network = Network(key, f"{safe_name(name)}@{secrets.token_hex(8)}", "0.0.0.0", lambda news: None)
    except (OSError, StoreError):
        yield None
        return
    try:
        yield NetworkNotifier(network, name)
    finally:
        network.close()


def peer_of(node: Member | Participant) -> Peer:
    """Return the network endpoint of a node's agent."""
    return Peer(node.node, node.address, node.notification_port)
