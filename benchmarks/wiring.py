"""One agent's rendezvous, connected as in `hpcelastic.agent.agent`, without workers."""

import queue
import secrets
from collections.abc import Callable
from dataclasses import replace

from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.notifier import NetworkNotifier
from hpcelastic.backends.files import FileBackend
from hpcelastic.doctor.verdict import FilesystemReport, advise
from hpcelastic.errors import HpcElasticError
from hpcelastic.network import Network, News, shared_key
from hpcelastic.protocol.changes import changed, difference, pack, unpack
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.failure_detector import heartbeat_interval
from hpcelastic.protocol.node import NodeStateMachine, Publish, ReservePort, StartWorkers, Transition
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.rendezvous.run import find_run, open_run
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

RUN = "scale"

_ADDRESS = "127.0.0.1"
_PORT = 1
"""Port of the workers' store. No process binds it here."""


def settings(nodes: int) -> Settings:
    """Return the default timings for ``nodes`` nodes. One of them may be missing in a round."""
    return advise(
        Settings(NodeRange(max(1, nodes - 1), nodes), restarts=RestartSettings(0)), FilesystemReport(safe=True)
    )


def warm_up() -> None:
    """Fill the caches of the codec once, for all nodes that are forked from this process."""
    state = State(RUN, settings(1), participants=(Participant("node@0", 1, _ADDRESS, _PORT),))
    decode(State, encode(state))
    changed(state, unpack(pack(difference(state, replace(state, phase=Phase.RUNNING)))))


def make_run(paths: RunPaths, nodes: int) -> None:
    """Create a run for ``nodes`` nodes, as a submission does before any agent starts."""
    for directory in (paths.register, paths.leases):
        files.make_directory(directory)
    open_run(FileBackend(paths), RUN, settings(nodes), "user")
    shared_key(paths.key)


def join(paths: RunPaths, index: int, nodes: int) -> Callable[[], None]:
    """Join as node ``index`` of ``nodes`` until the process ends.

    Return a function that waits until an agent would start its workers of the next round. It raises the errors that an
    agent raises.
    """
    joined: queue.SimpleQueue[HpcElasticError | None] = queue.SimpleQueue()
    node = f"node{index:05d}@0-{secrets.token_hex(4)}"

    def on_news(news: News) -> None:
        thread.receive(news)

    def deliver(message: Observation | HpcElasticError) -> None:
        if isinstance(message, HpcElasticError):
            joined.put(message)
        else:
            follow(message)

    def follow(observation: Observation) -> None:
        transition = None
        while transition is None or transition.actions:
            transition = machine.observe(observation.state, observation.lease, boottime(), settled=observation.settled)
            perform(transition)

    def perform(transition: Transition) -> None:
        nonlocal machine
        machine = transition.machine
        for action in transition.actions:
            if isinstance(action, Publish):
                thread.publish(machine.member)
            elif isinstance(action, ReservePort):
                machine = machine.with_port(_PORT)
            elif isinstance(action, StartWorkers):
                joined.put(None)

    backend = FileBackend(paths)
    found = find_run(backend, RUN, settings(nodes), node, boottime)
    interval = heartbeat_interval(settings(nodes).rendezvous.shortest_lease)
    network = Network(shared_key(paths.key), node, _ADDRESS, on_news, interval=interval)
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
    machine = NodeStateMachine(member)
    rendezvous = Rendezvous(backend, node, settings(nodes), boottime, NetworkNotifier(network, node), first=found)
    thread = RendezvousThread(rendezvous, member, settings(nodes).rendezvous.poll, deliver, lambda: None)
    perform(machine.begin(found.state))
    thread.start()
    network.start()

    def await_round() -> None:
        if error := joined.get():
            raise error

    return await_round
