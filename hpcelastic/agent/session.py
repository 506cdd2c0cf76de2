"""The participation of one node in a run: all that every agent needs, whether it supervises its workers itself or not.

A `Session` owns the lease and the rendezvous thread, the notifier, the guard, the node state machine, the time-outs and
the event log. Its owner waits for events, supervises the workers, and executes the actions that concern them. Two
owners exist: `hpcelastic.agent.agent.Agent` and `hpcelastic.pytorch.session.ExternalAgentSession`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from hpcelastic.agent.evidence import Evidence
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.lease_monitor import LeaseMonitor
from hpcelastic.agent.notifier import NetworkNotifier, open_network
from hpcelastic.agent.old_rounds import OldRounds
from hpcelastic.agent.settings import LogSettings
from hpcelastic.agent.started import agent_started
from hpcelastic.agent.timeouts import Timeouts
from hpcelastic.backends.backend import Backend
from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.network import News, Transfer
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.events import AgentEnded, Event, Fenced, StoreFailed
from hpcelastic.protocol.failure_detector import heartbeat_interval
from hpcelastic.protocol.node import Action, NodeStateMachine, Publish, Transition
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, Notice
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.rendezvous.run import Reading
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.storage import files
from hpcelastic.storage.events import EventLog
from hpcelastic.storage.paths import RunPaths

Observe = Callable[[Event], None]
"""A function that is called with each event, in the thread of the event. It must return at once."""

DEPARTURE_TIMEOUT = 5.0
"""Seconds that the departure of an agent may take to reach the shared filesystem."""


@dataclass(frozen=True)
class SessionSpec:
    """The arguments of a session."""

    paths: RunPaths
    backend: Backend
    settings: Settings
    member: Member
    found: Reading
    """The run as the agent has found it."""

    network: NetworkSettings = field(default_factory=NetworkSettings)

    observe: Observe | None = None
    job_start: float | None = None
    """The time at which SLURM started the job, in seconds since the epoch; None if it is unknown."""

    keep_rounds: int | None = LogSettings.keep_rounds
    """Number of rounds whose logs and events stay; None for all."""


class Session:
    """The participation of one node in a run. Methods are called in the thread of the owner, unless they say otherwise.

    ``inbox`` receives what the rendezvous thread finds: an `Observation`, or the error that prevented it. ``perform``
    executes an action that concerns the workers. ``report`` is called with lines for people. ``renewed`` is called in
    the rendezvous thread after each renewal of the lease.
    """

    def __init__(
        self,
        spec: SessionSpec,
        inbox: Inbox[Any],
        perform: Callable[[Action], None],
        report: Callable[[str], None],
        renewed: Callable[[], None] | None = None,
    ) -> None:
        self.spec, self.report = spec, report
        self._perform, self.deliver = perform, inbox.deliver
        files.make_directory(spec.paths.events, within=spec.paths.root)
        self.accept_transfer: Callable[[Transfer], None] = Transfer.close
        """Called in the thread of the network with each transfer that another agent starts. It must return at once."""

        self.network = (
            open_network(
                spec.paths,
                spec.member,
                self._notified,
                lambda each: self.accept_transfer(each),
                report,
                spec.network.port_range,
                heartbeat_interval(spec.settings.rendezvous.shortest_lease),
            )
            if spec.network.notifications
            else None
        )
        """The network of this agent; None if agents do not use it."""

        member = replace(spec.member, notification_port=self.network.port if self.network else 0)
        self.state_machine = NodeStateMachine(member)
        self.timeouts = Timeouts(spec.settings.rendezvous.join_timeout)
        self._evidence = Evidence(self.log, spec.found.state)
        self.old_rounds = OldRounds(spec.paths, spec.backend, spec.keep_rounds)
        self.events = EventLog(spec.paths.event_log(member.node), member.name, self.old_rounds.first_needed)
        notifier = NetworkNotifier(self.network, member.node) if self.network else None
        times = spec.settings.rendezvous
        self._lease = LeaseMonitor(lambda end: self.guard.set_deadline(end), times, self.log, report)
        rendezvous = Rendezvous(
            spec.backend,
            member.node,
            spec.settings,
            boottime,
            notifier,
            self._lease.held_until,
            self._evidence.committed,
            spec.found,
        )

        def on_renewal() -> None:
            self._lease.renewed(rendezvous.lease_duration)
            if renewed is not None:
                renewed()

        self._rendezvous = RendezvousThread(rendezvous, member, times.poll, inbox.deliver, on_renewal)
        self.reason = ""

    def __enter__(self) -> "Session":
        self.guard = Guard(self.member.node, self.inherited)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the guard and the renewals of the lease, and release the network."""
        self.old_rounds.end()
        self.guard.__exit__(kind, error, trace)
        self._rendezvous.stop(0.0)  # it may renew the lease still, if there was no departure
        if self.network:
            self.network.close()

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that every process of this node keeps open, so that peers detect when none of them is left."""
        return (self.network.presence.fileno(),) if self.network else ()

    @property
    def member(self) -> Member:
        """The newest content of the node's lease."""
        return self.state_machine.member

    @property
    def expiry(self) -> float:
        """Seconds after which a node that becomes silent now is declared dead, at most."""
        return self._lease.expiry

    def start(self, workers: int | None = None) -> None:
        """Take part: keep the lease from now on, and ask for a place in the next round.

        ``workers`` is the number of workers for the event log; None if the owner does not start them itself.
        """
        self.log(agent_started(self.member, workers, self.spec.job_start))  # before the threads log their events
        self.apply(self.state_machine.begin(self.spec.found.state))
        self._rendezvous.start()
        if self.network:
            self.network.start()

    def depart(self) -> None:
        """Publish the departure; no worker may be left on this node. It takes at most `DEPARTURE_TIMEOUT` seconds."""
        self.apply(self.state_machine.depart())
        if not self._rendezvous.stop(DEPARTURE_TIMEOUT):
            self.report("the departure could not be published; the other nodes wait until the lease expires")

    def end_log(self) -> None:
        """Log the end of the agent, as the last event."""
        self.log(AgentEnded())
        self.events.close(DEPARTURE_TIMEOUT)

    def apply(self, transition: Transition) -> None:
        """Take the next value of the node state machine, and execute its actions."""
        self.state_machine = transition.machine
        for action in transition.actions:
            if isinstance(action, Publish):
                self._rendezvous.publish(self.member)
            else:
                self._perform(action)

    def follow(self, observation: Observation, polls: Callable[[], bool]) -> None:
        """Do what follows from an observation. ``polls`` tells whether the workers poll for requests to stop."""
        transition = None
        while transition is None or transition.actions:
            lease = self._lease.still_held(observation.lease)
            transition = self.state_machine.observe(
                observation.state, lease, boottime(), settled=observation.settled, polls=polls()
            )
            self.apply(transition)

    def leave(self, notice: Notice, polls: bool) -> None:
        """Leave the run. ``polls`` tells whether the workers poll for requests to stop."""
        self.apply(self.state_machine.leave(notice, boottime(), polls))

    def call_rendezvous(self, change: Callable[[Rendezvous], None]) -> None:
        """Call ``change`` in the rendezvous thread before its next turn, which comes at once."""
        self._rendezvous.call(change)

    def log(self, event: Event) -> None:
        """Write an event to the event log, in any thread."""
        self.events.write(event)
        if self.spec.observe is not None:
            self.spec.observe(event)

    # Events that the owner passes on

    def record(self, observation: Observation) -> None:
        """Log and report how the run stands. The owner then passes the state to the node state machine."""
        if self.timeouts.failing:
            self.report(f"{self.spec.paths.root}: works again")
        self.timeouts.observe(observation)
        state = observation.state
        self._evidence.observed(observation.version, state)
        if observation.reason != self.reason and not state.phase.final:
            self.report(observation.reason)
        self.reason, self._lease.expiry = observation.reason, observation.expiry

    def store_failed(self, error: HpcElasticError) -> None:
        """Wait until the run's directory works again. Raises an ``error`` of another kind."""
        if not isinstance(error, StoreError):
            raise error
        if self.timeouts.record_error(error):
            timeout = self.spec.settings.rendezvous.join_timeout
            self.report(f"{error}; trying again for {timeout:g} s (rendezvous.join_timeout)")
            self.log(StoreFailed(error=str(error)))
        self.apply(self.state_machine.store_failed())

    def guard_reported(self) -> None:
        """Read the guard's message. If the lease has expired, the guard has killed the workers."""
        if not self.guard.handle_message():
            return
        self.timeouts.mark_unresponsive()
        if self.state_machine.part is not None:
            round, where = self.state_machine.part.round, self.spec.paths.root
            what = f"the lease expired: the workers of round {round} were killed"
            self.report(f"{what}; is the shared filesystem that holds {where} slow or stuck?")
            self.log(Fenced(round=round))
        self.apply(self.state_machine.lease_expired())

    def seconds_left(self) -> float | None:
        """Return the seconds until a wait takes too long; None if the node waits for nothing."""
        return self.timeouts.remaining(self.state_machine.leaving or self.state_machine.part is not None)

    def timed_out(self) -> HpcElasticError:
        """Return the error to raise after a wait that took too long."""
        return self.timeouts.timeout_error(self.spec.paths.root, self.reason)

    # In other threads

    def _notified(self, news: News) -> None:
        self._evidence.notified(news)
        self._rendezvous.receive(news)
