"""The shell around the protocol: read, decide, compare-and-set.

`Rendezvous.step` is one whole turn, without threads and without waiting. `RendezvousThread` repeats its two halves, so
that a filesystem that hangs blocks only that thread: it renews the lease, and it polls as seldom as possible.
"""

from collections import deque
from collections.abc import Callable, Collection

from hpcelastic.backends.backend import Backend
from hpcelastic.protocol.changes import difference, pack
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.decide import Decision, decide, describe
from hpcelastic.protocol.leaders import leader_rank, rivals
from hpcelastic.protocol.lease_duration import LeaseDuration
from hpcelastic.protocol.peers import News, Notification, PeerHeard, PeerLinkLost, PeerRefused, PeerSilent
from hpcelastic.protocol.polling import PollResult, PollSchedule
from hpcelastic.protocol.publications import ends_the_round, grows, reports_loss
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.spread import part_of_interval
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.lease_keeper import LeaseKeeper
from hpcelastic.rendezvous.notifier import NoNotifier, Notifier
from hpcelastic.rendezvous.observation import Commit, Observation
from hpcelastic.rendezvous.observed_leases import ObservedLeases
from hpcelastic.rendezvous.probes import Probes
from hpcelastic.rendezvous.run import Reading
from hpcelastic.rendezvous.suspicion import Suspicions
from hpcelastic.rendezvous.turns import Turns


class Rendezvous:
    """One node's side of the rendezvous in ``backend``. ``clock`` returns seconds.

    ``held_until`` is called with the time at which the node's lease expires, whenever it changes; see `LeaseKeeper`.
    ``committed`` is called with each version that this node has written. ``first`` is what this node has read already.
    """

    def __init__(
        self,
        backend: Backend,
        node: str,
        settings: Settings,
        clock: Callable[[], float],
        notifier: Notifier | None = None,
        held_until: Callable[[float], None] = lambda end: None,
        committed: Callable[[Commit], None] = lambda commit: None,
        first: Reading | None = None,
    ) -> None:
        times = settings.rendezvous
        self._node, self._times, self._clock = node, times, clock
        self._notifier, self._committed = notifier or NoNotifier(), committed
        self._register = backend.register(node)
        self._lease = LeaseKeeper(backend.lease(node), times, clock, held_until, part_of_interval(node))
        self._schedule = PollSchedule(times, clock, node)
        self._known = KnownState(self._register, first or Reading(0, State("", settings), float("-inf")), clock)
        self._leases = ObservedLeases(backend, times, clock, self._known, self._lease)
        self._suspicions = Suspicions(node, self._leases, self._known, clock)
        self._turns = Turns(self._leases, self._known, self._lease, clock)
        self._lost_in = -1
        """The last round that the loss of this node has ended."""

        self._leaders_notified = True
        """False from a publication that leaders wait for until they are notified."""

        self._probes = Probes(times.poll, clock)
        self._expected: int | None = None
        """Nodes that the batch system has started and that have not been seen; None if it was not asked."""

        self._quorum_since: float | None = None
        self._changes: deque[Callable[[State], Decision]] = deque()
        """Changes of the state that this node still has to commit."""

    def step(self, member: Member) -> Observation:
        """Publish ``member`` in our lease, then advance the run as far as possible.

        Raises StoreError if the directory cannot be used; the caller may retry.
        """
        if self._known.state.phase is Phase.JOINING:
            self._renew(self._with_dead(member))
        else:
            self.renew(member)
        observation, again = self._poll(read=True)
        while again:
            observation, again = self._poll(read=True)
        return observation

    @property
    def lease_duration(self) -> LeaseDuration:
        """The duration of this node's lease."""
        return self._lease.duration

    def renew(self, member: Member) -> None:
        """Publish ``member`` if it is new or a renewal is due.

        A renewal is due at least three times in the life of a lease, before each poll while a round forms, because
        others may wait for it then, and when another node requests one.
        """
        late = self._lease.published is not None and self._lease.until_renewal(early=False) <= 0
        if late:
            self._renew(self._suspicions.with_gone(member))  # before a look at the leases, which may be slow, or fail
        member = self._with_dead(member)
        if member != self._lease.published or (not late and self._until_renewal() <= 0):
            self._renew(member)

    def poll(self) -> Observation | None:
        """Advance the run if a poll is due; return None otherwise. Raises as `step` does."""
        if not self._schedule.poll_due:
            self._notify_leaders()
            return None
        return self._poll(read=self._schedule.read_due)[0]

    def pause(self) -> float:
        """Return the seconds until something is due, unless news arrive."""
        return max(0.0, min(self._until_renewal(), self._schedule.pause, self._suspicions.pause))

    def poll_again(self) -> None:
        """Poll in the next turn, and read the leases."""
        self._expedite(newer=True)

    def expect(self, expected: int) -> None:
        """The batch system has started ``expected`` nodes, in this phase of the run, that have not been seen."""
        self._expected = expected
        self._expedite(newer=True)

    def change(self, change: Callable[[State], Decision]) -> None:
        """Commit the result of ``change`` on the newest state, from the next turn on until that succeeds.

        ``change`` decides nothing if the change is made already, or not needed any more.
        """
        self._changes.append(change)
        self._schedule.record_notification(newer=True)

    def announce(self, version: int) -> None:
        """Tell, in any thread, that a notification of ``version`` is among the news of the next turn."""
        self._known.announced = max(self._known.announced, version)

    def receive(self, news: News) -> None:
        """Take account of news from the network."""
        match news:
            case Notification(version, change):
                newer = version > self._known.number
                if self._known.state.phase is Phase.JOINING and not newer and not change:
                    self._lease.requested = True
                    self._suspicions.probed()
                self._known.offer(version, change)
                self._expedite(newer)
            case PeerSilent(node):
                self._suspicions.became_silent(node)
                self._schedule.record_notification(newer=True)
            case PeerHeard(node):
                self._suspicions.heard(node)
            case PeerRefused(node) if self._suspicions.suspects(node):
                self._suspicions.refused(node)
            case PeerLinkLost(node) | PeerRefused(node):
                self._link_lost(node)

    def _link_lost(self, node: str) -> None:
        """One of the two nodes may be dead. A node that is alive renews its lease at once."""
        self._lease.requested = True
        self._suspicions.link_lost(node)

    def _expedite(self, newer: bool) -> None:
        self._leases.mark_outdated()
        self._schedule.record_notification(newer)

    # One poll

    def _poll(self, read: bool) -> tuple[Observation, bool]:
        """Read the newest version. Decide what follows if the leases are ``read``, or have to be.

        Return also whether more may follow at once. This node follows a version before it decides on the next one,
        because the others do so too, and all their requests would delay it.
        """
        began, before = self._clock(), self._known.number
        version, state = self._make_changes()
        again = self._known.number != before and self._acts_first(state)
        read = (read or self._must_read(state)) and not again
        reason, short, busy = describe(state), False, None
        while read and not again:
            decision = self._decide(state)
            reason, short, busy = decision.reason, decision.short, decision.busy
            if decision.next is None or not self._commit(version, decision.next):
                break
            version, state = self._read()
            again = state is decision.next or state.phase is not Phase.RUNNING or self._acts_first(state)
        rank = self._schedule_next(began, state, read)
        if read and rank is not None and state.phase is Phase.JOINING:
            self._probe(state, busy or (), rank)
        if again and rank == 0 and state.phase is Phase.JOINING:
            self._schedule.record_notification(newer=True)
        first = rank == 0 and not state.phase.final
        last = state.phase is Phase.JOINING and busy is not None and {*busy} <= {self._node}
        settled, held, expiry = self._lease.settled, self._lease.held, self._leases.expiry
        view = self._leases.view(expected=self._expected)
        seen = Observation(version, state, reason, held, settled, first, short, last, view, expiry)
        return seen, again

    def _acts_first(self, state: State) -> bool:
        """Return whether this node stops or starts workers before it reads the leases."""
        own = self._lease.published
        if own is None:
            return False
        starts = state.phase is Phase.RUNNING and self._node in state.ranks and own.round < state.round
        return starts or (state.phase is Phase.JOINING and own.node_state is NodeState.RUNNING)

    def _make_changes(self) -> tuple[int, State]:
        """Commit the changes of this node, and return the newest version."""
        version, state = self._read()
        while self._changes:
            wanted = self._changes[0](state).next
            if wanted is None:
                self._changes.popleft()
            elif not self._commit(version, wanted):
                break
            version, state = self._read()
        return version, state

    def _must_read(self, state: State) -> bool:
        """Return whether this node has to read the leases at each poll, because no other node may do so."""
        if state.phase.final:
            return False
        if self._leases.own is None and not state.participants and self._turns.pause <= 0:
            self._leases.read_names()
        return self._leader_rank() == 0 or self._ends_the_round(state)

    def _ends_the_round(self, state: State) -> bool:
        """Return whether our newest publication ends the round that runs, and has not been acted on yet."""
        now = self._lease.published
        return now is not None and ends_the_round(state, now, self._leases.own) and self._turns.pause <= 0

    def _schedule_next(self, began: float, state: State, read: bool) -> int | None:
        """Schedule the next poll, when nothing more is to be decided, and return our rank among the leaders."""
        inside, published = self._node in state.ranks, self._lease.published
        self._suspicions.keep()
        self._notifier.watch(state.participants if inside else (), self._known.number)
        late = inside and published is not None and published.round < state.round
        urgent = self._suspicions.watchful or late or not self._lease.settled
        nodes = self._leases.size
        self._lease.set_alone(nodes == 1)
        rank = self._leader_rank()
        started = self._leases.looked_at if self._leases.looked_at >= began else self._clock()
        self._schedule.record_poll(started, PollResult(state.phase, rank, nodes, self._notifier.healthy, urgent), read)
        for seconds in self._suspicions.reads():
            self._schedule.read_within(seconds)
        self._schedule.read_at_turn(self._turns.until_reading(self._leases.leaders()))
        if self._changes:
            self._schedule.read_within(self._times.poll)
        if (left := self._turns.pause) > 0:
            self._schedule.poll_within(left)
        self._notify_leaders()
        return rank

    def _probe(self, state: State, busy: Collection[str], rank: int) -> None:
        """Probe the nodes that the round waits for, or their neighbours, each from time to time."""
        if due := self._probes.due(state, self._leases.nodes, busy, rank):
            self._notifier.notify(due, self._known.number)
        if (left := self._probes.until_answers) > 0:
            self._schedule.read_within(left)

    def _commit(self, version: int, state: State) -> bool:
        """Commit ``state`` after ``version``. False if that fails: the next turn sees what was committed instead.

        A version that another node has announced is not read here: its change is among the news of the next turn.
        """
        # A node that has just regained its lease forms no round: others that still see it expired would end the round.
        unsettled = state.phase is Phase.RUNNING and not self._lease.settled
        if unsettled or self._known.announced > version:
            return False
        with self._register.lock():
            if self._known.announced > version:
                return False
            newest = self._register.read()
            if newest.number != version:
                self._known.adopt(newest)
                return newest.number > version  # another node was faster: decide anew
            won = self._register.commit(version, encode(state))
        if won:
            lost = state.just_lost
            evidence = self._leases.view().evidence_of_death(lost) if lost else ""
            self._committed(Commit(version + 1, state, evidence, self._leases.silence(lost) if lost else None))
            self._leaders_notified = True
            self._notify_all(version + 1, state)
            self._known.record(version + 1, state)
        return won

    def _notify_all(self, version: int, state: State) -> None:
        """Notify the members of the last and of this round, and all other nodes that are alive, of a new version."""
        before = self._known.state
        there = {s.member.node: s.member for s in self._leases.nodes.values() if s.member and s.alive}
        found: dict[str, Participant | Member] = {p.node: p for p in rivals(before, state)}
        for members in (before.participants, state.participants):
            for rank, node in enumerate(column(members, "node")):
                if node not in found:  # the member in a lease need not be decoded
                    found[node] = there.get(node) or members[rank]
        others = (member for node, member in there.items() if node not in found)
        self._notifier.notify([*found.values(), *others], version, pack(difference(before, state)))

    # Our lease

    def _renew(self, member: Member) -> None:
        before = self._lease.published
        self._lease.renew(member)
        self._schedule.lease = self._lease.duration.seconds
        if member != before:
            self._turns.begin()
            self._published(member, before)
            self._schedule.read_at_turn(self._turns.until_reading(()))  # no leader has renewed its lease since then

    def _with_dead(self, member: Member) -> Member:
        """Look at the leases of suspected nodes, and return ``member`` with those that are gone."""
        if self._suspicions.confirm():
            self._schedule.record_notification(newer=True)
        return self._suspicions.with_gone(member)

    def _until_renewal(self) -> float:
        early = not self._known.offered  # else it is followed first: all nodes do, and a renewal waits behind them
        if early and self._known.state.phase is Phase.JOINING and self._schedule.regular_poll_due:
            return 0.0
        return self._lease.until_renewal(early)

    def _published(self, member: Member, before: Member | None) -> None:
        """Our lease has new content: poll at once if we must act on it; otherwise notify the leaders."""
        state = self._known.state
        if state.phase is Phase.RUNNING and reports_loss(state, member, before):
            self._leaders_notified = False
            self._notify_leaders()  # they know most leases, and this node may have to read all of them first
        acts = member.node_state in (NodeState.READY, NodeState.FAILED, NodeState.LEFT) or bool(member.leaving)
        acts = acts or grows(state, member)
        joining = state.phase is Phase.JOINING
        if self._known.number < 0:  # our first publication, in a run of which we know nothing yet
            self._leaders_notified = False
            self._schedule.record_notification(newer=True)
        elif acts and not joining and self._turns.pause <= 0:
            self._schedule.record_notification(newer=True)
        elif acts or joining or member.node_state is NodeState.SUCCEEDED:
            self._leaders_notified = False
            self._schedule.record_notification(newer=False)
        elif not self._suspicions.watchful and self._lease.settled:
            self._schedule.record_caught_up()

    # Leaders

    def _notify_leaders(self) -> None:
        if not self._leaders_notified and self._known.number >= 0:
            self._leaders_notified = True
            others = [leader for leader in self._leases.leaders() if leader.node != self._node]
            self._notifier.notify(others, self._known.number)

    def _leader_rank(self) -> int | None:
        """Return our rank among the leaders; None if we are none of them."""
        found, own = self._leases.leaders(), self._lease.published
        return leader_rank(found, self._known.state, own, self._leases.size) if found and own else None

    # Reading

    def _read(self) -> tuple[int, State]:
        before, published = self._known.number, self._lease.published
        version, state = self._known.read(self._lease.held, self._lease.settled_at)
        waits = published is not None and published.node_state is NodeState.READY
        if waits and state.phase is Phase.JOINING and 0 <= before < version:
            self._lease.requested = True  # the leaders may have seen no renewal of a node that was not in the round
        ended = state.round - (state.phase is Phase.RUNNING)
        if state.lost == self._node and ended > self._lost_in:
            self._lease.duration.declared_dead()
            self._lost_in = ended
        return version, state

    def _decide(self, state: State) -> Decision:
        watchful = self._suspicions.watchful or state.phase is not Phase.RUNNING
        self._leases.read(watchful, self._lease.duration.interval / 2)
        now = self._clock()
        since = now if self._quorum_since is None else self._quorum_since
        decision = decide(state, self._leases.view(now - since, self._expected))
        self._quorum_since = since if decision.quorum else None
        if decision.next is not None:
            self._expected = None  # the batch system's answer was about this round
        return decision
