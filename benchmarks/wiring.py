"""One agent's rendezvous as `hpcelastic.agent.agent` wires it, without workers: the one place that knows that API."""

import contextlib
import queue
import secrets

from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.notifier import NetworkNotifier
from hpcelastic.doctor.verdict import FilesystemReport, advise
from hpcelastic.errors import HpcElasticError
from hpcelastic.network import Network, News, shared_key
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.node import Action, Actions, NodeStateMachine, Publish, ReservePort, StartWorkers
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, State
from hpcelastic.rendezvous.rendezvous import Observation, Rendezvous
from hpcelastic.rendezvous.run import open_run
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.storage import files
from hpcelastic.storage.locks import LockKind
from hpcelastic.storage.paths import RunPaths

RUN = "scale"

_ADDRESS = "127.0.0.1"
_PORT = 1
"""Of the workers' store, which nobody binds here."""


def settings(nodes: int) -> Settings:
    """Default timings, as so many nodes have them; a round needs all."""
    return advise(Settings(NodeRange(nodes, nodes), restarts=RestartSettings(0)), FilesystemReport(safe=True))


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
        thread.call(lambda rendezvous: rendezvous.receive(news))

    def deliver(message: Observation | HpcElasticError) -> None:
        if isinstance(message, HpcElasticError):
            joined.put(message)
        else:
            do(state_machine.observe(message.state, message.lease_from, message.settled))

    def do(actions: Actions) -> None:
        answer: int | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = act(actions.send(answer))

    def act(action: Action) -> int | None:
        if isinstance(action, Publish):
            thread.publish(action.member)
        elif isinstance(action, StartWorkers):
            joined.put(None)
        return _PORT if isinstance(action, ReservePort) else None

    state = open_run(paths, RUN, settings(nodes), node)
    network = Network(shared_key(paths.key), node, _ADDRESS, heard)
    member = Member(
        node=node,
        node_state=NodeState.READY,
        round=-1,
        local_world_size=1,
        address=_ADDRESS,
        port=0,
        order=index,
        job="scale.0",
        job_nodes=nodes,
        notification_port=network.port,
    )
    state_machine = NodeStateMachine(member, settings(nodes).rendezvous.lease, boottime)
    rendezvous = Rendezvous(paths, node, settings(nodes), boottime, LockKind.NATIVE, NetworkNotifier(network))
    thread = RendezvousThread(rendezvous, member, settings(nodes).rendezvous.poll, deliver, lambda lease_from: None)
    do(state_machine.begin(state))
    thread.start()
    network.start()
    if error := joined.get():
        raise error
