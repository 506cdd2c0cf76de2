"""The shell around the protocol: read, decide, compare-and-set.

`Rendezvous.step` is one turn, without threads or waiting; `RendezvousThread` repeats it, so that a hung filesystem
hangs that thread alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.decide import Decision, close, decide, reopen
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, Phase, Seen, State, View
from hpcelastic.store.leases import LeaseObserver, OwnLease
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths
from hpcelastic.store.register import Register, Version

Clock = Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """What a turn has found."""

    version: int
    state: State
    reason: str
    """Why the run stands where it stands, or what it waits for."""

    lease_from: float
    """When the renewal of our lease began, on this process's clock: the lease runs from then."""

    settled: bool = True
    """False for a while after the lease had run out: others may still see it as it was, and go on without us."""


class Rendezvous:
    """One node's side of the rendezvous in a run's directory."""

    def __init__(
        self, paths: RunPaths, node: str, settings: Settings, clock: Clock, lock: LockKind = LockKind.NATIVE
    ) -> None:
        self._node = node
        self._clock = clock
        self._register = Register(paths.register, node, lock)
        self._lease = OwnLease(paths.leases, node)
        expiry = settings.rendezvous.lease + settings.rendezvous.margin
        self._observer = LeaseObserver(paths.leases, expiry, clock)
        self._lasts, self._margin = settings.rendezvous.lease, settings.rendezvous.margin
        self._beat = self._lasts / 4
        self._said: Member | None = None
        self._phase = Phase.JOINING
        self._lease_from = 0.0
        self._regained = float("-inf")
        """When a lease that had run out was renewed."""

        self._looked: _Look | None = None
        self._quorum_since: float | None = None

    def step(self, member: Member) -> Outcome:
        """Keep our lease, saying ``member``, then bring the run forward as far as it will go.

        Raises StoreError where the directory can't be used; the caller may try again.
        """
        self._renew(member)
        version, state = self._read()
        decision = self._decide(version, state, member)
        while decision.next is not None and self._commit(version, decision.next):
            version, state = self._read()
            decision = self._decide(version, state, member)
        self._phase = state.phase
        return Outcome(version.number, state, decision.reason, self._lease_from, self._settled)

    def _commit(self, version: Version, state: State) -> bool:
        """Make ``state`` the successor of ``version``; False if there is one already, which the next turn may see."""
        # Who has just regained its lease forms no round: others may still see it lost, and would end the round at once.
        if state.phase is Phase.RUNNING and not self._settled:
            return False
        with self._register.lock():
            newest = self._register.read()
            if newest.number != version.number:
                return True  # somebody was faster: decide anew
            return self._register.commit(version.number, encode(state))

    @property
    def _settled(self) -> bool:
        """Whether all must have seen our lease as it is now, should it have run out before."""
        return self._lease_from >= self._regained + self._margin

    def _renew(self, member: Member) -> None:
        """Renew the lease whenever the node has something new to say, and four times in the lease's life; in every turn
        while a round forms, when those who have just come wait for a sign of life."""
        now = self._clock()
        quiet = self._phase is Phase.RUNNING and member == self._said
        if quiet and now - self._lease_from < self._beat:
            return
        self._lease.renew(member)
        done = self._clock()
        if self._said is not None and done >= self._lease_from + self._lasts:
            self._regained = done
        self._said, self._lease_from = member, now

    def _read(self) -> tuple[Version, State]:
        version = self._register.read()
        return version, decode_state(self._register, version)

    def _decide(self, version: Version, state: State, member: Member) -> Decision:
        nodes = {**self._look(version, state, member), self._node: Seen(member, alive=True)}
        now = self._clock()
        since = now if self._quorum_since is None else self._quorum_since
        decision = decide(state, View(nodes, quorum_for=now - since))
        self._quorum_since = since if decision.quorum else None
        return decision

    def _look(self, version: Version, state: State, member: Member) -> Mapping[str, Seen]:
        """The leases of all nodes. While a round runs they are read as seldom as they are renewed: whoever has news
        brings the run forward itself, and only a node that has died can't."""
        now, looked = self._clock(), self._looked
        news = looked is None or (looked.version, looked.member) != (version.number, member)
        if looked is None or news or state.phase is not Phase.RUNNING or now - looked.time >= self._beat:
            nodes = self._observer.observe(p.node for p in state.participants)
            self._looked = looked = _Look(version.number, member, now, nodes)
        return looked.nodes


@dataclass(frozen=True)
class _Look:
    """What the leases said when they were last read, and what for."""

    version: int
    member: Member
    time: float
    nodes: Mapping[str, Seen]


def open_run(paths: RunPaths, run_id: str, settings: Settings, writer: str) -> State:
    """The state of the run, which is created if nobody has; ConfigError if it was created with other settings."""
    register = Register(paths.register, writer)
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
    return _newest(paths, Register(paths.register, writer=""))[1]


def close_run(paths: RunPaths, writer: str, reason: str) -> State:
    """End a run for good, whatever it is doing; return how it ended, which may have been before."""
    return _change(paths, writer, lambda state: close(state, reason).next)


def reopen_run(paths: RunPaths, writer: str, settings: Settings) -> State:
    """Let a run go on that has ended, or whose agents are gone, with other settings if so wished."""
    return _change(paths, writer, lambda state: reopen(state, settings))


def _change(paths: RunPaths, writer: str, change: Callable[[State], State | None]) -> State:
    """Commit what ``change`` makes of the newest state, whoever else writes; None leaves it as it is."""
    register = Register(paths.register, writer)
    while True:
        version, state = _newest(paths, register)
        changed = change(state)
        if changed is None:
            return state
        if register.commit(version.number, encode(changed)):
            return changed


def _newest(paths: RunPaths, register: Register) -> tuple[Version, State]:
    version = register.read()
    if version.number == 0:
        raise StoreError(f"{paths.root}: holds no run")
    return version, decode_state(register, version)


def decode_state(register: Register, version: Version) -> State:
    """The state in a version of the register; StoreError names the file where it makes no sense."""
    try:
        return decode(State, version.value)
    except ValueError as error:
        what = f"version {version.number} makes no sense ({error}); was it written by a newer hpcelastic?"
        raise StoreError(f"{register.directory}: {what}") from error


def _differences(theirs: Settings, ours: Settings) -> str:
    old, new = encode(theirs), encode(ours)
    pairs = [(f"{part}.{key}", old[part][key], new[part][key]) for part in old for key in old[part]]
    return ", ".join(f"{key} = {was} (here {now})" for key, was, now in pairs if was != now)
