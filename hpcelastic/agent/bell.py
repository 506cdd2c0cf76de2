"""The network as the rendezvous of an agent knows it."""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

from hpcelastic.errors import StoreError
from hpcelastic.network import Heard, Network, News, Peer, Refused, Rung, Shaken, Silent, shared_key
from hpcelastic.protocol.state import Member, Participant
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.store.paths import RunPaths, safe_name


class Bell:
    """`hpcelastic.rendezvous.rendezvous.Doorbell` over a `Network`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._watched: tuple[Sequence[Participant], int] = ((), -1)

    @property
    def calm(self) -> bool:
        # Who is alone in its round leads: it looks every few seconds all the same, and has nobody to lose.
        return self._network.healthy or len(self._watched[0]) == 1

    def ring(self, nodes: Iterable[Member | Participant], version: int) -> None:
        self._network.ring(map(_peer, nodes), version)

    def watch(self, members: Sequence[Participant], version: int) -> None:
        if (members, version) != self._watched:
            self._watched = members, version
            self._network.watch([_peer(member) for member in members], version)


def open_network(
    paths: RunPaths, member: Member, heard: Callable[[News], None], report: Callable[[str], None]
) -> Network | None:
    """The network of an agent; None if it can't be had, which is told: the files alone carry a run as well."""
    try:
        return Network(shared_key(paths.key), member.node, member.address, heard)
    except OSError as error:
        report(f"no doorbell: {error}; others' news are found by looking in the run's directory")
        return None


@contextlib.contextmanager
def bell_from_outside(paths: RunPaths, name: str) -> Iterator[Bell | None]:
    """A doorbell for somebody who takes no part in the run; None where there is none to be had."""
    try:
        key = shared_key(paths.key)
        network = Network(key, f"{safe_name(name)}@{secrets.token_hex(8)}", "0.0.0.0", lambda news: None)
    except (OSError, StoreError):
        yield None
        return
    try:
        yield Bell(network)
    finally:
        network.close()


def heed(news: News) -> Callable[[Rendezvous], None]:
    """What the rendezvous is to make of ``news``."""
    if isinstance(news, Rung):
        version = news.version
        return lambda rendezvous: rendezvous.told(version)
    node = news.node
    if isinstance(news, Shaken):
        return lambda rendezvous: rendezvous.shaken(node)
    if isinstance(news, Refused):
        return lambda rendezvous: rendezvous.refused(node)
    if isinstance(news, Silent):
        return lambda rendezvous: rendezvous.silent(node)
    assert isinstance(news, Heard)
    return lambda rendezvous: rendezvous.heard(node)


def _peer(node: Member | Participant) -> Peer:
    return Peer(node.node, node.address, node.bell)
