"""The simulated network between nodes, with the interface of `hpcelastic.network`: notifications and peer events.

A machine refuses connections only after the last process of the node's agent, guard and workers on it has ended.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcelastic.protocol.peers import News, Notification, PeerHeard, PeerLinkLost, PeerRefused, PeerSilent, linked

if TYPE_CHECKING:
    from tests.simulation.node import Node

_LATE = 0.05
"""Fraction of the notifications that arrive late, by up to half a minute."""

_SILENCE = 1.5
"""Seconds after which a neighbour that sends nothing is reported as silent, again and again."""

_BREAKS = 0.05
"""Fraction of the links that break once although both nodes live."""

_REFUSED_DELAY, _REFUSED_INTERVAL = 0.1, 0.5
"""Seconds until a refused connection is reported for the first time, and between two reports."""


class Notifier:
    """One node's side of the network, a `hpcelastic.rendezvous.notifier.Notifier`. ``loss`` is the fraction of messages
    that are lost; with 1 the network cannot be used."""

    def __init__(self, node: "Node", loss: float) -> None:
        self._node = node
        self._world = node.world
        self._loss = loss
        self._members: Sequence[Any] = ()
        self._watched: tuple[str, ...] = ()
        self._alone = False

    @property
    def healthy(self) -> bool:
        if self._alone:
            return True
        around = [self._world.node(id) for id in self._watched]
        return bool(around) and self._loss < 1 and not any(node.gone or node.frozen for node in around)

    def notify(self, nodes: Iterable[Any], version: int, change: bytes = b"") -> None:
        news = Notification(version, change)
        for target in list(nodes):
            if self._world.random.random() >= self._loss:
                late = self._world.random.random() < _LATE
                self._deliver(self._world.node(target.node), news, late)

    def watch(self, members: Sequence[Any], version: int) -> None:
        if members is self._members:
            return
        self._members = members
        ids = [p.node for p in members]
        self._alone = len(ids) == 1
        index = ids.index(self._node.id) if ids else 0
        before, self._watched = self._watched, tuple(ids[i] for i in linked(index, len(ids))) if ids else ()
        for id in self._watched:
            node = self._world.node(id)
            if id not in before and (node.gone or node.frozen or self._loss == 1):
                self.lost(node) if node.gone else self.silent(node)
            elif id not in before and self._world.random.random() < _BREAKS:
                self._world.clock.after(
                    self._world.random.uniform(0, 20), partial(self._break, node), self._node.process
                )

    def lost(self, node: "Node") -> None:
        """Report the loss of the connections to a neighbour whose agent has died."""
        if node.id not in self._watched:
            return
        if self._loss == 1:
            self.silent(node)
            return
        self._deliver(self._node, PeerLinkLost(node.id))
        self._world.clock.after(_REFUSED_DELAY, partial(self._refused, node), self._node.process)

    def silent(self, node: "Node") -> None:
        """Report, after the silence time-out, a neighbour that sends no more heartbeats."""
        self._world.clock.after(_SILENCE, partial(self._still_silent, node), self._node.process)

    def heard(self, node: "Node") -> None:
        if node.id in self._watched and self._loss < 1:
            self._deliver(self._node, PeerHeard(node.id))

    def _still_silent(self, node: "Node") -> None:
        if node.id in self._watched and (node.gone or node.frozen or self._loss == 1):
            self._deliver(self._node, PeerSilent(node.id))
            self.silent(node)

    def _break(self, node: "Node") -> None:
        """Let the link to a living node break, and make it again."""
        if node.id in self._watched and not (node.gone or node.frozen or self._node.gone):
            self._deliver(self._node, PeerLinkLost(node.id))
            self._world.clock.after(_REFUSED_INTERVAL, partial(self.heard, node), self._node.process)

    def _refused(self, node: "Node") -> None:
        if node.id in self._watched and not self._node.gone:
            if not node.present:
                self._deliver(self._node, PeerRefused(node.id))
            self._world.clock.after(_REFUSED_INTERVAL, partial(self._refused, node), self._node.process)

    def _deliver(self, node: "Node", news: News, late: bool = False) -> None:
        if not node.gone:
            delay = self._world.random.uniform(0.0005, 30.0 if late else 0.05)
            self._world.clock.after(delay, lambda: node.receive(news), node.process)
