"""The workers of a node that are in no round: those that the last round has left, and those that start early.

The node offers them for the next round. A node that has lost workers holds back for a moment if the workers in their
place are usually ready by then, so that one round is enough.
"""

from collections.abc import Sequence

from hpcelastic.agent.binding import name_ranks
from hpcelastic.agent.early_workers import EarlyWorkers
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.failure_texts import describe_exit
from hpcelastic.agent.failures import end_of_worker
from hpcelastic.agent.fork_server import ForkServer
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.launch import Launch
from hpcelastic.agent.session import Session
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.ipc.worker_channel import Message, Parked
from hpcelastic.protocol.assignment import Assignment, prospect
from hpcelastic.protocol.events import WorkersStartEarly
from hpcelastic.protocol.node import WorkerOffer
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous

_HOLD = 0.3
"""Seconds for which a node that has lost workers does not ask for a place, if the last worker started faster."""

_TRIAL_HOLD = 0.15
"""Such seconds if the last worker started slower, and the fork server has learned imports since."""


class StartTimes:
    """How long workers take until they are ready to train, and for how long a node therefore holds back for one."""

    def __init__(self, fork_server: ForkServer | None) -> None:
        self._fork_server = fork_server
        self._fast = False
        """Whether the last worker was ready within `_HOLD`."""

        self._began = 0.0
        """The time of the last early start."""

        self._learned = 0
        """How often the fork server had learned imports before the last early start."""

    def note(self, seconds: float) -> None:
        """A worker was ready after so many seconds."""
        self._fast = seconds <= _HOLD

    def begin(self) -> None:
        """An early start begins."""
        self._began, self._learned = boottime(), self._times_learned()

    def end(self) -> None:
        """A worker that started early is ready."""
        self.note(boottime() - self._began)

    def hold(self) -> float:
        """Return the seconds for which a node that has lost workers holds back; 0 if it does not."""
        if self._fast:
            return _HOLD
        return _TRIAL_HOLD if self._times_learned() > self._learned else 0.0

    def _times_learned(self) -> int:
        return 0 if self._fork_server is None else self._fork_server.times_learned


class IdleWorkers:
    """The workers of this node that wait for a round, or start without a place in one."""

    def __init__(self, session: Session, loop: EventLoop, launch: Launch) -> None:
        self._session, self._loop, self._launch = session, loop, launch
        self._local_ranks = range(session.spec.member.local_world_size)
        """The local ranks of all workers of the node."""

        self._early = EarlyWorkers(loop, launch.make_group, self._offer_changed, session.report)
        self.parked: WorkerGroup | None = None
        """The group of the last round, whose workers wait for the next one; None if none waits."""

        self.hold_ends: float | None = None
        """The time until which the node does not ask for a place; None if it does not hold back."""

        self._starts = StartTimes(launch.resources.fork_server)

    @property
    def count(self) -> int:
        """The number of these workers."""
        return len(self._waiting | self._early.starting)

    @property
    def _waiting(self) -> set[int]:
        """The local ranks of the workers that wait for a round."""
        parked = [] if self.parked is None else self.parked.running.values()
        return {worker.local_rank for worker in parked} | self._early.waiting

    def keep(self, group: WorkerGroup) -> None:
        """Keep the parked workers of the group for the next round."""
        self.parked = group
        for pidfd in group.running:
            self._loop.unwatch(pidfd)
            self._loop.watch(pidfd, lambda pidfd=pidfd: self._parked_worker_ended(pidfd))  # type: ignore[misc]

    def replace_lost(self, part: Assignment, *, allowed: bool) -> None:
        """Start the workers that are missing after the round of ``part``, if it is ``allowed`` and the script can."""
        present = self._waiting | self._early.starting
        missing = [local_rank for local_rank in self._local_ranks if local_rank not in present]
        if missing and allowed and self._early.allowed and not self._session.state_machine.leaving:
            hold = self._starts.hold()
            self.hold_ends = boottime() + hold if hold else None
            self._start_early(part, missing)
        self._set_offer()

    def observe(self, observation: Observation) -> None:
        """Start all workers of a node outside the running round, if the script allows an early start.

        So a node that joins does not delay the others, and a spare can replace a lost node at once.
        """
        state, member = observation.state, self._session.member
        outside = state.phase is Phase.RUNNING and member.node not in state.ranks
        begun = self._early.begun or self._waiting or self._session.state_machine.leaving
        if outside and not begun and observation.early_start(member.role):
            self._early.allow(True)
            estimate = prospect(state, member, len(self._local_ranks))
            self._start_early(estimate, self._local_ranks)
            self._set_offer()

    def choose(self, count: int) -> tuple[int, ...]:
        """Return the local ranks of a round's workers: those that wait for it first, those that start last."""
        waiting, starting = self._waiting, self._early.starting
        by_readiness = sorted(self._local_ranks, key=lambda each: (each not in waiting, each in starting, each))
        return tuple(sorted(by_readiness[:count]))

    def hand_over(self, part: Assignment) -> list[WorkerGroup]:
        """Return the groups whose workers can be resumed in the round of ``part``."""
        parked = [] if self.parked is None else [self.parked]
        for group in parked:
            for pidfd in group.running:
                self._loop.unwatch(pidfd)
            if part.collective_failed:
                self._discard_suspects(group)
        self.parked = self.hold_ends = None
        return parked + self._early.hand_over(part.local_ranks)

    def _discard_suspects(self, group: WorkerGroup) -> None:
        """Kill parked workers that were resumed for the last round and have not completed a step in it.

        Such a process may be the cause of a failed collective, for example because of its device. If its rank is even,
        it is replaced after an even round, else after an odd one. So half of them keep the state in memory each time.
        """
        round, page = group.part.round, self._launch.control_page
        parked = [worker for worker in group.running.values() if worker.rank in group.resumed]
        suspects = [
            worker
            for worker in parked
            if worker.rank % 2 == round % 2 and not page.marks(worker.local_rank).has_step(round)
        ]
        for worker in suspects:
            self._session.report(
                f"rank {worker.rank} of round {round} is started anew: "
                "it has completed no step, and no cause of the failed collective was found"
            )
        group.discard([worker.local_rank for worker in suspects])

    def stop(self) -> None:
        """Kill the workers that have started early, and forget the others, which the caller stops."""
        self._early.stop()
        self.parked = self.hold_ends = None
        self._set_offer()

    def allow(self, early_start: bool, seconds: float) -> None:
        """A worker was ready to train ``seconds`` after the start of its round. The script allows an early start, or
        does not."""
        self._starts.note(seconds)
        before = self._early.allowed
        self._early.allow(early_start)
        if self._early.allowed != before:
            self._offer_changed()

    def end_hold(self) -> None:
        """Ask for a place without the workers that are still starting."""
        self.hold_ends = None
        self._offer_changed()

    def owns(self, pid: int) -> bool:
        """Return whether ``pid`` is a worker that was started early."""
        return self._early.owns(pid)

    def receive(self, pid: int, message: Message) -> None:
        """Handle a message of such a worker."""
        if isinstance(message, Parked):
            self._starts.end()
            self._early.note_parked(pid)

    def _start_early(self, estimate: Assignment, local_ranks: Sequence[int]) -> None:
        for local_rank in local_ranks:
            self._launch.control_page.revoke(local_rank)  # a worker that was killed has not done it itself
        self._starts.begin()
        started = self._early.start(estimate, local_ranks, self._launch.environ)
        if not started:
            return
        ranks = f"local {name_ranks(started)}"
        self._session.report(f"starting {ranks}; the others do not wait for {ranks}")
        self._session.log(WorkersStartEarly(round=estimate.round, local_ranks=tuple(started)))

    def _parked_worker_ended(self, pidfd: int) -> None:
        """A process that waited for the next round has ended. Its worker is started anew in the next round."""
        self._loop.unwatch(pidfd)
        assert self.parked is not None
        worker, exit_code = self.parked.reap(pidfd)
        round = self.parked.part.round
        what = f"rank {worker.rank} of round {round} has ended while it waited for the next round"
        self._session.report(f"{what}: {describe_exit(exit_code)}")
        self._session.log(end_of_worker(worker, round, exit_code))

    # The offer of the node

    def _offer(self) -> WorkerOffer:
        starting, workers = len(self._early.starting), len(self._local_ranks)
        if starting and self._session.spec.settings.nodes.multiple > 1:
            starting = workers  # groups of ranks span whole nodes
        if not starting:
            self.hold_ends = None
        return WorkerOffer(workers - starting, starting, self._early.allowed)

    def _set_offer(self) -> None:
        """Publish the offer together with the next state of the node."""
        offer, machine = self._offer(), self._session.state_machine
        self._session.state_machine = machine.with_workers(offer, holds=self.hold_ends is not None)

    def _offer_changed(self) -> None:
        """Publish the offer at once."""
        offer, machine = self._offer(), self._session.state_machine
        self._session.apply(machine.workers_offered(offer, holds=self.hold_ends is not None))
        self._session.call_rendezvous(Rendezvous.poll_again)
