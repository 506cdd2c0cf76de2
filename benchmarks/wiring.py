"""One agent's rendezvous, connected as in `hpcelastic.agent.agent`, without workers."""

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
"""Port of the workers' store. No process binds it here."""


def settings(nodes: int) -> Settings:
    """Return the default timings for ``nodes`` nodes. A round needs all nodes."""
    return advise(Settings(NodeRange(nodes, nodes), restarts=RestartSettings(0)), FilesystemReport(safe=True))


def warm_up() -> None:
    """Fill the caches of the codec once, for all nodes that are forked from this process."""
    decode(State, encode(State(RUN, settings(1))))


def make_run(paths: RunPaths) -> None:
    """Create the directories that agents expect in a run's directory."""
    for directory in (paths.register, paths.leases):
        files.make_directory(directory)


def join(paths: RunPaths, index: int, nodes: int) -> None:
    """Join as node ``index`` of ``nodes`` until the process ends. Return when an agent would start its workers.

    Raises the errors that an agent raises.
    """
    joined: queue.SimpleQueue[HpcElasticError | None] = queue.SimpleQueue()
    node = f"node{index:05d}@0-{secrets.token_hex(4)}"

    def on_news(news: News) -> None:
        thread.call(lambda rendezvous: rendezvous.receive(news))

    def deliver(message: Observation | HpcElasticError) -> None:
        if isinstance(message, HpcElasticError):
            joined.put(message)
        else:
            perform(state_machine.observe(message.state, message.lease_from, message.settled))

    def perform(actions: Actions) -> None:
        answer: int | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = perform_action(actions.send(answer))

    def perform_action(action: Action) -> int | None:
        if isinstance(action, Publish):
            thread.publish(action.member)
        elif isinstance(action, StartWorkers):
            joined.put(None)
        return _PORT if isinstance(action, ReservePort) else None

    state = open_run(paths, RUN, settings(nodes), node)
    network = Network(shared_key(paths.key), node, _ADDRESS, on_news)
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
    perform(state_machine.begin(state))
    thread.start()
    network.start()
    if error := joined.get():
        raise error
