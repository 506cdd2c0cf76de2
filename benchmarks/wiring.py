"""One agent's rendezvous as `hpcelastic.agent.agent` wires it, without workers: the one place that knows that API."""

import contextlib
import queue
import secrets

from hpcelastic.agent.bell import Bell, heed
from hpcelastic.agent.conduct import Action, Actions, Conduct, Reserve, Say, Start
from hpcelastic.agent.guard import boottime
from hpcelastic.doctor.verdict import Verdict, advise
from hpcelastic.errors import HpcElasticError
from hpcelastic.network import Network, News, shared_key
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Member, Stand, State
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
    """Default timings, as so many nodes have them; a round needs all."""
    return advise(Settings(NodeRange(nodes, nodes), restarts=RestartSettings(0)), Verdict(safe=True))


def warm_up() -> None:
    """Work out how states are read, once for all nodes that are forked from this process."""
    decode(State, encode(State(RUN, settings(1))))


def make_run(paths: RunPaths) -> None:
    """What the agents find in a run's directory."""
    for directory in (paths.register, paths.leases):
        files.make_directory(directory)


def join(paths: RunPaths, index: int, nodes: int) -> None:
    """Take part as node ``index`` of ``nodes``, until the process ends; returns when an agent would start its workers.

    Raises what the agent would.
    """
    joined: queue.SimpleQueue[HpcElasticError | None] = queue.SimpleQueue()
    node = f"node{index:05d}@0-{secrets.token_hex(4)}"

    def heard(news: News) -> None:
        thread.hear(heed(news))

    def deliver(message: Outcome | HpcElasticError) -> None:
        if isinstance(message, HpcElasticError):
            joined.put(message)
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
            joined.put(None)
        return _PORT if isinstance(action, Reserve) else None

    state = open_run(paths, RUN, settings(nodes), node)
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
    do(conduct.found(state))
    thread.start()
    network.start()
    if error := joined.get():
        raise error
