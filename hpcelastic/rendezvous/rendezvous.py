"""The shell around the protocol: read, decide, compare-and-set.

`Rendezvous.step` is one whole turn, without threads or waiting. `RendezvousThread` takes its two halves again and
again, so that a hung filesystem hangs that thread alone: it renews the lease, and it looks, as seldom as will do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.decide import Decision, close, decide, fail, reopen, standing
from hpcelastic.protocol.leaders import COUNT, leaders
from hpcelastic.protocol.settings import RENEWALS, Settings
from hpcelastic.protocol.state import Failure, Member, Participant, Phase, Seen, Stand, State, View
from hpcelastic.rendezvous.attention import Attention, Moment
from hpcelastic.store.backend import AnyRegister, backend_of, note_backend
from hpcelastic.store.copies import StateCopies
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.register import Version

Clock = Callable[[], float]

_AGAIN = 0.05
"""Seconds between two signs of life, however often they are asked for."""

_STILL = 0.1
"""Seconds for which the lease of a node that was refused must have stood still: who lives shows it at once."""


_JUST = 0.01
"""Seconds after which a lease that has run out has certainly done so."""


class Doorbell(Protocol):
    """How nodes hear of news sooner than by looking. Nothing rests on it."""

    def ring(self, nodes: Iterable[Member | Participant], version: int) -> None:
        """Tell ``nodes`` to look, and that ``version`` is the newest known here; returns at once."""

    def watch(self, members: Sequence[Participant], version: int) -> None:
        """Tell neighbours among the ``members`` of a round from each other's death."""

    @property
    def calm(self) -> bool:
        """True while all neighbours can be heard, if there are any, so that no news can pass unheard."""


class NoBell:
    """A doorbell that nobody hears."""

    calm = False

    def ring(self, nodes: Iterable[Member | Participant], version: int) -> None: ...

    def watch(self, members: Sequence[Participant], version: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What a look has found."""

    version: int
    state: State
    reason: str
    """Why the run stands where it stands, or what it waits for."""

    lease_from: float
    """When the renewal of our lease began, on this process's clock: the lease that held as the register was read."""

    settled: bool = True
    """False for a while after the lease had run out: others may still see it as it was, and go on without us."""

    first: bool = False
    """True if no other node looks before this one."""

    short: bool = False
    """True while too few nodes are ready for a round, and nobody else is waited for."""

    last: bool = False
    """True if the round has ended, and no other node's workers of it are left."""


class Rendezvous:
    """One node's side of the rendezvous in a run's directory."""

    def __init__(
        self,
        paths: RunPaths,
        node: str,
        settings: Settings,
        clock: Clock,
        lock: LockKind = LockKind.NATIVE,
        bell: Doorbell | None = None,
    ) -> None:
        self._node = node
        self._backend = backend_of(paths)
        self._poll = settings.rendezvous.poll
        self._clock = clock
        self._bell = bell or NoBell()
        self._register = self._backend.register(node, lock)
        self._lease = self._backend.lease(node)
        expiry = settings.rendezvous.lease + settings.rendezvous.margin
        self._observer = self._backend.observer(expiry, clock)
        self._lasts, self._margin = settings.rendezvous.lease, settings.rendezvous.margin
        self._beat = self._lasts / RENEWALS
        self._attention = Attention(settings.rendezvous, clock)
        self._said: Member | None = None
        self._untold = False
        """True from a word of ours that others wait for until somebody was told of it."""

        self._asked = False
        """True when somebody wants to see whether we live."""

        self._known: Version | None = None
        self._state = State("", settings)
        """The newest state that was read, and what its participants' leases said then."""

        self._lease_from = 0.0
        self._regained = float("-inf")
        """When a lease that had run out was renewed."""

        self._looked: _Look | None = None
        self._glance = _Glance(0, {})
        self._prodded: dict[str, float] = {}
        """When nodes were asked last to show that they live."""

        self._fresh = False
        """False once somebody has news that may be in the leases."""

        self._coming: int | None = None
        """Nodes that the scheduler has started and that have not been seen, where it was asked."""

        self._quorum_since: float | None = None
        self._silent: set[str] = set()
        """Neighbours that can't be heard: only their leases tell whether they live."""

        self._suspects: dict[str, tuple[float, str | None]] = {}
        """Neighbours whose connection has broken: since when, and their lease as it was then."""

        self._gone: frozenset[str] = frozenset()
        """Members of the round of whose agent and workers no process is left."""

    def step(self, member: Member) -> Outcome:
        """Keep our lease, saying ``member``, then bring the run forward as far as it will go.

        Raises StoreError where the directory can't be used; the caller may try again.
        """
        if self._state.phase is Phase.JOINING:
            self._renew(self._informed(member))
        else:
            self.renew(member)
        return self._look(read=True)

    def renew(self, member: Member) -> float:
        """Say ``member`` in our lease, if that is new or it is time; the start of the renewal that holds.

        It is time three times in the lease's life; before every look while a round forms, when others may wait for a
        sign of life; and when somebody asks for one.
        """
        member = self._informed(member)
        if member != self._said or self._until_renewal() <= 0:
            self._renew(member)
        return self._lease_from

    def look(self) -> Outcome | None:
        """Bring the run forward if it is time to look, or if there is news; None else. Raises as `step`."""
        if not self._attention.due:
            self._tell_leaders()
            return None
        return self._look(read=self._attention.reading)

    def pause(self) -> float:
        """Seconds until something has to be done, unless somebody rings."""
        return max(0.0, min(self._until_renewal(), self._attention.pause))

    def look_again(self) -> None:
        """Look in the next turn, whatever there is to see."""
        self._fresh = False
        self._attention.told(newer=True)

    # What others make us look for

    def told(self, version: int) -> None:
        """Somebody has rung, who knows of ``version``."""
        newer = self._known is None or version > self._known.number
        self._asked = self._asked or self._state.phase is Phase.JOINING
        self._fresh = False
        self._attention.told(newer)

    def expect(self, coming: int) -> None:
        """The scheduler has started so many nodes, in this phase of the run, that have not been seen."""
        self._coming = coming
        self._fresh = False
        self._attention.told(newer=True)

    def silent(self, node: str) -> None:
        """A neighbour can't be heard any more."""
        self._silent.add(node)
        self._attention.told(newer=True)

    def heard(self, node: str) -> None:
        """A neighbour can be heard again."""
        self._silent.discard(node)

    def shaken(self, node: str) -> None:
        """The connection to a neighbour broke: one of us may be dead. Who lives renews its lease at once."""
        self._asked = True
        self._observer.observe(())
        self._suspects[node] = self._clock(), self._observer.mark(node)

    def refused(self, node: str) -> None:
        """The machine of a neighbour whose connection broke says that nobody is left there."""
        if node not in self._suspects:
            return self.shaken(node)
        since, before = self._suspects[node]
        self._observer.observe(())
        if self._observer.mark(node) != before:
            del self._suspects[node]
        elif self._clock() - since >= _STILL and node in {p.node for p in self._state.participants}:
            self._gone |= {node}
            self._fresh = False
            self._attention.told(newer=True)
        return None

    # One look

    def _look(self, read: bool) -> Outcome:
        """Follow the newest version; decide what comes next if we ``read`` the leases, or have to."""
        began = self._clock()
        version, state = self._read()
        read = read or self._must_read(state)
        reason, short, busy = standing(state), False, None
        while read:
            decision = self._decide(version, state)
            reason, short, busy = decision.reason, decision.short, decision.busy
            if decision.next is None or not self._commit(version, decision.next):
                break
            version, state = self._read()
        rank = self._rested(began, state, read)
        first = rank == 0 and not state.phase.final
        last = state.phase is Phase.JOINING and busy is not None and {*busy} <= {self._node}
        return Outcome(version.number, state, reason, self._lease_from, self._settled, first, short, last)

    def _must_read(self, state: State) -> bool:
        """Whether the leases have to be read for what nobody else may see to."""
        if state.phase.final:
            return False
        if self._looked is None and not state.participants:
            count, foremost = self._backend.glance(COUNT)
            first = {member.node: Seen(member, alive=True, proved=False) for member in foremost}
            self._glance = _Glance(count, first)
        return self._rank() is not None or self._ends_the_round(state)

    def _ends_the_round(self, state: State) -> bool:
        """Whether we have said something by which the round that runs must end, and have not acted on it yet."""
        said, before = self._said, self._looked.member if self._looked else None
        if state.phase is not Phase.RUNNING or said is None or said == before:
            return False
        left = said.stand is Stand.READY and said.round >= state.round
        left = left or said.leaving != (before.leaving if before else None)
        return left or said.stand in (Stand.FAILED, Stand.LEFT) or said.dead != (before.dead if before else ())

    def _rested(self, began: float, state: State, read: bool) -> int | None:
        """What is to be done once nothing more is to be decided; which of the leaders we are."""
        assert self._known is not None
        inside = {p.node for p in state.participants}
        self._gone &= inside
        self._silent &= inside
        self._bell.watch(state.participants if self._node in inside else (), self._known.number)
        late = self._node in inside and self._said is not None and self._said.round < state.round
        urgent = bool(self._silent) or late or not self._settled
        nodes = max(len(self._seen), len(state.participants), self._glance.nodes)
        rank = self._rank()
        self._attention.looked(began, Moment(state.phase, rank, nodes, self._bell.calm, urgent), read)
        self._await_the_end_of_silent()
        self._tell_leaders()
        if read and rank is not None and state.phase is Phase.JOINING:
            self._prod()
        return rank

    def _await_the_end_of_silent(self) -> None:
        """Look when the lease of a silent neighbour has run out, not some time later."""
        for node in self._silent:
            left = self._observer.expires(node) - self._clock()
            if left > 0:
                self._attention.soon(left + _JUST)

    def _prod(self) -> None:
        """Ask those of whom no renewal has been seen to renew their leases, each now and then."""
        assert self._known is not None
        now = self._clock()
        unproved = [s.member for s in self._seen.values() if s.member and not s.proved and s.alive]
        asked = [m for m in unproved if now - self._prodded.get(m.node, float("-inf")) >= self._poll]
        if asked:
            self._prodded.update((member.node, now) for member in asked)
            self._bell.ring(asked, self._known.number)
            self._attention.soon(2 * _AGAIN)  # the answer is in the leases, and nobody rings for it

    def _commit(self, version: Version, state: State) -> bool:
        """Make ``state`` the successor of ``version``; False if there is one already, which the next turn may see."""
        # Who has just regained its lease forms no round: others may still see it lost, and would end the round at once.
        if state.phase is Phase.RUNNING and not self._settled:
            return False
        with self._register.lock():
            newest = self._register.read()
            if newest.number != version.number:
                return True  # somebody was faster: decide anew
            won = self._register.commit(version.number, encode(state))
        if won:
            self._untold = False
            everybody = {p.node: p for p in (*self._state.participants, *state.participants)}
            self._bell.ring([*everybody.values(), *self._others(set(everybody))], version.number + 1)
        return won

    def _others(self, but: set[str]) -> list[Member]:
        """Nodes that live, as far as we have seen."""
        return [s.member for s in self._seen.values() if s.member and s.alive and s.member.node not in but]

    @property
    def _settled(self) -> bool:
        """Whether all must have seen our lease as it is now, should it have run out before."""
        return self._lease_from >= self._regained + self._margin

    def _renew(self, member: Member) -> None:
        now, before = self._clock(), self._said
        self._lease.renew(member)
        done = self._clock()
        if before is not None and done >= self._lease_from + self._lasts:
            self._regained = done
        self._said, self._lease_from, self._asked = member, now, False
        if member != before:
            self._mind(member)

    def _informed(self, member: Member) -> Member:
        """``member`` with those that we know to be gone."""
        news = sorted(self._gone - set(member.dead))
        return replace(member, dead=(*member.dead, *news)) if news else member

    def _until_renewal(self) -> float:
        if self._said is None or (self._state.phase is Phase.JOINING and self._attention.due):
            return 0.0
        return self._lease_from + (_AGAIN if self._asked else self._beat) - self._clock()

    def _mind(self, member: Member) -> None:
        """We have said something new: look at once if we are the one to act on it, else let the leaders know."""
        joining = self._state.phase is Phase.JOINING
        if self._known is None:
            self._untold = True  # our first word, in a run of which we know nothing yet
            self._attention.told(newer=True)
        elif not joining and (member.stand in (Stand.READY, Stand.FAILED, Stand.LEFT) or member.leaving):
            self._attention.told(newer=True)
        elif joining or member.stand is Stand.SUCCEEDED:
            self._untold = True
            self._attention.told(newer=False)

    def _tell_leaders(self) -> None:
        if self._untold and self._known is not None:
            self._untold = False
            self._bell.ring([leader for leader in self._leaders() if leader.node != self._node], self._known.number)

    def _leaders(self) -> list[Participant | Member]:
        return leaders(self._state, self._view())

    def _rank(self) -> int | None:
        """Which of the leaders we are; None if none."""
        return next((i for i, leader in enumerate(self._leaders()) if leader.node == self._node), None)

    def _read(self) -> tuple[Version, State]:
        version = self._register.read()
        if self._known is None or version.number != self._known.number:
            self._state, self._known = decode_state(self._register, version), version
        return version, self._state

    def _decide(self, version: Version, state: State) -> Decision:
        self._see(version, state)
        now = self._clock()
        since = now if self._quorum_since is None else self._quorum_since
        decision = decide(state, self._view(now - since))
        self._quorum_since = since if decision.quorum else None
        if decision.next is not None:
            self._coming = None  # what the scheduler has said was about this round
        return decision

    def _view(self, quorum_for: float = 0.0) -> View:
        assert self._said is not None
        return View({**self._seen, self._node: Seen(self._said, alive=True)}, quorum_for, self._coming)

    @property
    def _seen(self) -> Mapping[str, Seen]:
        return self._looked.nodes if self._looked else self._glance.first

    def _see(self, version: Version, state: State) -> None:
        """Read the leases of all nodes. While a round runs that is done as seldom as they are renewed: whoever has news
        brings the run forward itself, and only a node that has died can't."""
        now, looked, member = self._clock(), self._looked, self._said
        news = looked is None or (looked.version, looked.member) != (version.number, member)
        watchful = bool(self._silent) or state.phase is not Phase.RUNNING
        if looked is None or news or watchful or not self._fresh or now - looked.time >= self._beat / 2:
            nodes = self._observer.observe(p.node for p in state.participants)
            self._fresh = True
            self._looked = _Look(version.number, member, now, nodes)


@dataclass(frozen=True)
class _Glance:
    """What the names of the leases said to who had not read them yet."""

    nodes: int
    first: Mapping[str, Seen]


@dataclass(frozen=True)
class _Look:
    """What the leases said when they were last read, and what for."""

    version: int
    member: Member | None
    time: float
    nodes: Mapping[str, Seen]


def announce_run(paths: RunPaths, run_id: str, settings: Settings) -> None:
    """Prepare a run that its first agent will create, in the server that it is kept in."""
    value = encode(State(run_id, settings, reason="no agent has come yet"))
    StateCopies(paths).announce(value)
    note_backend(paths, run_id, settings.rendezvous)


def open_run(paths: RunPaths, run_id: str, settings: Settings, writer: str) -> State:
    """The state of the run, which is created if nobody has; ConfigError if it was created with other settings."""
    register = backend_of(paths).register(writer)
    if register.read().number == 0:
        register.commit(0, encode(State(run_id, settings)))
    state = decode_state(register, register.read())
    if state.run_id != run_id:
        raise ConfigError(f"{paths.root}: holds the run {state.run_id!r}, not {run_id!r}; use another directory")
    if state.settings != settings:
        raise ConfigError(
            f"{paths.root}: the run was created with {_differences(state.settings, settings)}; every agent of a run "
            "must use the same settings: repeat those, or use another run id"
        )
    return state


def read_state(paths: RunPaths) -> State:
    """The state of a run, for those that take no part in it; StoreError where there is none."""
    return _newest(paths, backend_of(paths).register(writer=""))[1]


def close_run(paths: RunPaths, writer: str, reason: str, bell: Doorbell | None = None) -> State:
    """End a run for good, whatever it is doing; return how it ended, which may have been before."""
    return _change(paths, writer, lambda state: close(state, reason).next, bell)


def fail_run(
    paths: RunPaths, writer: str, reason: str, failures: tuple[Failure, ...] = (), bell: Doorbell | None = None
) -> State:
    """End a run that cannot succeed any more; return how it ended, which may have been before."""
    return _change(paths, writer, lambda state: fail(state, reason, failures).next, bell)


def conclude_run(paths: RunPaths, writer: str, bell: Doorbell | None = None) -> State:
    """End a run whose members have all said that they have succeeded; others are left as they are.

    The agent that says so last may be the only one left, and about to end too.
    """
    said = {lease.member.node: Seen(lease.member, alive=True) for lease in backend_of(paths).leases().values()}

    def change(state: State) -> State | None:
        unseen = {p.node: Seen(None, alive=True) for p in state.participants}
        decided = decide(state, View(unseen | said)).next
        return decided if decided is not None and decided.phase is Phase.SUCCEEDED else None

    return _change(paths, writer, change, bell)


def steer_run(paths: RunPaths, writer: str, wish: Callable[[State], Decision], bell: Doorbell | None = None) -> State:
    """Let a user's wish, such as a drain, become the next version; return the state that heeds it."""
    return _change(paths, writer, lambda state: wish(state).next, bell)


def reopen_run(paths: RunPaths, writer: str, settings: Settings) -> State:
    """Let a run go on that has ended, or whose agents are gone, with other settings if so wished."""
    return _change(paths, writer, lambda state: reopen(state, settings))


def _change(
    paths: RunPaths, writer: str, change: Callable[[State], State | None], bell: Doorbell | None = None
) -> State:
    """Commit what ``change`` makes of the newest state, whoever else writes; None leaves it as it is."""
    register = backend_of(paths).register(writer)
    while True:
        version, state = _newest(paths, register)
        changed = change(state)
        if changed is None:
            return state
        if register.commit(version.number, encode(changed)):
            if bell is not None:
                bell.ring(changed.participants, version.number + 1)
            return changed


def _newest(paths: RunPaths, register: AnyRegister) -> tuple[Version, State]:
    version = register.read()
    if version.number == 0:
        raise StoreError(f"{paths.root}: holds no run")
    return version, decode_state(register, version)


def decode_state(register: AnyRegister, version: Version) -> State:
    """The state in a version of the register; StoreError names the file where it makes no sense."""
    try:
        return decode(State, version.value)
    except ValueError as error:
        what = f"version {version.number} makes no sense ({error}); was it written by a newer hpcelastic?"
        raise StoreError(f"{register.where}: {what}") from error


def _differences(theirs: Settings, ours: Settings) -> str:
    old, new = encode(theirs), encode(ours)
    pairs = [(f"{part}.{key}", old[part][key], new[part][key]) for part in old for key in old[part]]
    return ", ".join(f"{key} = {was} (here {now})" for key, was, now in pairs if was != now)
