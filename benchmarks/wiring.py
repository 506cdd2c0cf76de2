"""One agent's rendezvous as `hpcelastic.agent.agent` wires it, without workers: the one place that knows that API."""

import contextlib
import secrets
from collections.abc import Callable

from hpcelastic.agent.bell import Bell, heed
from hpcelastic.agent.conduct import Action, Actions, Conduct, Reserve, Say, Start
from hpcelastic.agent.guard import boottime
from hpcelastic.errors import HpcElasticError
from hpcelastic.network import Network, News, shared_key
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Member, Stand
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous, open_run
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.store import files
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths

RUN = "scale"

_ADDRESS = "127.0.0.1"
_PORT = 1
"""Of the workers' store, which nobody binds here."""


def settings(nodes: int) -> Settings:
    """Default timings; a round needs all nodes."""
    return Settings(NodeRange(nodes, nodes), restarts=RestartSettings(0))


def make_run(paths: RunPaths) -> None:
    """What the agents find in a run's directory."""
    for directory in (paths.register, paths.leases):
        files.make_directory(directory)


def join(paths: RunPaths, index: int, nodes: int, joined: Callable[[HpcElasticError | None], None]) -> None:
    """Take part as node ``index`` of ``nodes``, until the process ends.

    ``joined`` is called, in another thread, when an agent would start its workers, or with what went wrong.
    """
    node = f"node{index:05d}@0-{secrets.token_hex(4)}"

    def heard(news: News) -> None:
        thread.hear(heed(news))

    def deliver(message: Outcome | HpcElasticError) -> None:
        if isinstance(message, HpcElasticError):
            joined(message)
        else:
            do(conduct.learned(message.state, message.lease_from, message.settled))

    def do(actions: Actions) -> None:
        answer: int | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = act(actions.send(answer))

    def act(action: Action) -> int | None:
        if isinstance(action, Say):
            thread.say(action.member)
        elif isinstance(action, Start):
            joined(None)
        return _PORT if isinstance(action, Reserve) else None

    open_run(paths, RUN, settings(nodes), node)
    network = Network(shared_key(paths.key), node, _ADDRESS, heard)
    member = Member(
        node=node,
        stand=Stand.READY,
        round=-1,
        local_world_size=1,
        address=_ADDRESS,
        port=0,
        order=index,
        job="scale.0",
        job_nodes=nodes,
        bell=network.port,
    )
    conduct = Conduct(member, settings(nodes).rendezvous.lease, boottime)
    rendezvous = Rendezvous(paths, node, settings(nodes), boottime, LockKind.NATIVE, Bell(network))
    thread = RendezvousThread(rendezvous, member, settings(nodes).rendezvous.poll, deliver, lambda lease_from: None)
    thread.start()
    network.start()
