"""An abstract model of a run around the real `decide`, `close` and `NodeStateMachine`, small enough to search
completely.

A state of the model is a tuple of small numbers, each of which stands for an interned value: the register, the
remaining faults, the history, and one `Slot` for each node. There is no time: an action may take any time, so each step
below may occur at any moment when it is possible. The leases contribute one rule: a node may be declared dead only
after its guard has killed its workers, and only while it has not renewed its lease.

A step of a node is one that no other node can observe in part.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar

from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, Failure, Member, NodeState, Notice, Phase, Seen, State, View
from tests.protocol.under_test import NODE, Code, Patch, load

Value = TypeVar("Value", bound=Hashable)
Global = tuple[int, ...]
"""Register, remaining faults, history, then the slots; all interned."""

_HELD = HeldLease(0.0, 1.0)
"""A lease. Only fresh and old observations are distinguished."""


class Broken(AssertionError):
    """A property of the protocol is violated."""


class Interned(Generic[Value]):
    """Numbers for values, so that states are short and quick to compare."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}
        self._values: list[Value] = []

    def number(self, value: Value) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self._values)
            self._values.append(value)
        return found

    def __getitem__(self, number: int) -> Value:
        return self._values[number]


class LeaseIs(Enum):
    """What other nodes know of a node's lease."""

    HELD = "held"
    EXPIRED = "expired"
    """It expired, and the guard has killed the workers. An observer that has watched long enough declares the node
    dead."""

    REGAINED = "regained"
    """It was renewed after it had expired. An observer that reads late still declares the node dead."""


class News(NamedTuple):
    """An observation that the agent has not handled yet."""

    state: int
    """The state of the run, interned, without the parts on which no action of this node depends."""

    settled: bool
    fresh: bool
    """Whether the lease of the observation still holds."""


class Slot(NamedTuple):
    """One incarnation of a node."""

    up: bool
    machine: Any
    """The node state machine of the agent. The agent publishes its ``member`` next."""

    published: Member
    """The content of the lease file."""

    lease: LeaseIs = LeaseIs.HELD
    news: News | None = None
    pending: int | None = None
    """The interned state that the node has decided to commit after the newest version; None if there is none."""

    running: Any = None
    """The assignment of the workers that run, also while they are being stopped."""

    @property
    def member(self) -> Member:
        member: Member = self.machine.member
        return member

    @property
    def stopping(self) -> bool:
        """Whether the agent still has to park or to stop the workers."""
        return self.running is not None and self.machine.part is None


class Step(NamedTuple):
    """A step of one node."""

    slot: Slot
    fault: str = ""
    """The fault that the step takes from the budget."""

    breaks: int = 0
    """The round whose workers on other nodes may fail because of the step."""

    crashed: int = 0
    """The round in which the step is a worker's own failure."""


class History(NamedTuple):
    """Events that no node knows."""

    broken: int = 0
    """The newest round in which workers may fail because a peer is missing."""

    crashed: frozenset[int] = frozenset()
    """Rounds in which a worker failed by itself."""


@dataclass(frozen=True)
class Rules:
    """The parameters of the run, and the rules of the proof that apply. Without a rule, the search finds a
    violation."""

    nodes: int = 3
    min_nodes: int = 1
    max_nodes: int = 3
    multiple: int = 1
    restarts: int = 1
    faults: tuple[tuple[str, int], ...] = ()
    """How often each fault may happen: fail, crash, expire, leave, warn, come, close, give up."""

    rounds: int = 3
    """The last round of the search: a node that reads late may end any number of rounds."""

    patches: tuple[Patch, ...] = ()
    compare: bool = True
    """Whether a commit succeeds only on the version for which it was decided."""

    guard: bool = True
    """Whether the guard kills the workers before any node can declare this one dead."""

    lag: bool = False
    """Whether a reader of a lease may miss its last renewal."""

    settled: bool = True
    """Whether a node whose lease had expired starts workers only after every reader must have seen the renewal."""

    fresh: bool = True
    """Whether workers start only after an observation that is younger than the lease."""

    final: bool = False
    """Whether a node that has succeeded starts no workers again and may end before the run, like torch's agents."""

    polls: bool = False
    """Whether the workers poll for requests to stop at the end of a step."""


@dataclass
class Model:
    """All steps of a run of ``rules``."""

    rules: Rules
    _registers: Interned[State] = field(default_factory=Interned)
    _slots: Interned[Slot | None] = field(default_factory=Interned)
    _faults: Interned[tuple[tuple[str, int], ...]] = field(default_factory=Interned)
    _histories: Interned[History] = field(default_factory=Interned)
    _looks: Interned[object] = field(default_factory=Interned)
    _own: dict[int, list[tuple[int, str, int, int]]] = field(default_factory=dict)
    _spent: dict[tuple[int, str], int | None] = field(default_factory=dict)
    _read: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _idle: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _changes: set[tuple[int, ...]] = field(default_factory=set)
    _judged: set[tuple[int, ...]] = field(default_factory=set)

    @cached_property
    def code(self) -> Code:
        return load(*self.rules.patches)

    def first(self) -> Global:
        """Return the first state: all nodes exist and have read nothing yet."""
        settings = Settings(
            NodeRange(self.rules.min_nodes, self.rules.max_nodes, multiple=self.rules.multiple),
            restarts=RestartSettings(self.rules.restarts),
        )
        slots: list[Slot | None] = [self._newcomer(f"n{i}", 0, i) for i in range(self.rules.nodes)]
        spare = dict(self.rules.faults).get("come", 0)
        return (
            self._registers.number(_bare(State("run", settings))),
            self._faults.number(self.rules.faults),
            self._histories.number(History()),
            *(self._slots.number(slot) for slot in [*slots, *[None] * spare]),
        )

    def register(self, state: Global) -> State:
        return self._registers[state[0]]

    def slots(self, state: Global) -> list[Slot]:
        return [slot for number in state[3:] if (slot := self._slots[number]) is not None]

    def final(self, state: Global) -> bool:
        """True if the run has ended, too few nodes are left to continue, or the search ends."""
        up, register = sum(slot.up for slot in self.slots(state)), self.register(state)
        return register.phase.final or up < self.rules.min_nodes or register.round > self.rules.rounds

    # Steps

    def steps(self, state: Global) -> Iterator[tuple[Global, bool]]:
        """Yield the state after every possible step, and whether the step is a fault. None after the end of the run:
        all later steps could have occurred before it, or stop workers."""
        register, faults, history, *slots = state
        if self._registers[register].phase.final or self._registers[register].round > self.rules.rounds:
            return
        for place, number in enumerate(slots, 3):
            head, tail = state[3:place], state[place + 1 :]
            for after, fault, breaks, crashed in self._own_steps(number):
                if fault == "echo":
                    if self._histories[history].broken == breaks:
                        yield (register, faults, history, *head, after, *tail), False
                    continue
                left = self._spend(faults, fault) if fault else faults
                if left is not None:
                    happened = self._happened(history, breaks, crashed) if breaks else history
                    yield (register, left, happened, *head, after, *tail), bool(fault)
            for after in self._readings(register, place, slots):
                if after != number:
                    yield (register, faults, history, *head, after, *tail), False
            done, pending = self._without_pending(number)
            if pending is not None:
                yield self._changed((register, faults, history, *head, done, *tail), pending), False
        yield from self._outside_steps(state)

    def _own_steps(self, number: int) -> list[tuple[int, str, int, int]]:
        """Yield the slots after the node's own steps, with the fault, and the rounds in which workers may fail or
        did."""
        if number not in self._own:
            slot = self._slots[number]
            steps = self._steps_of(slot) if slot is not None and slot.up else ()
            self._own[number] = [(self._slots.number(step.slot), *step[1:]) for step in steps]
        return self._own[number]

    def _spend(self, faults: int, kind: str) -> int | None:
        """Return the budget after a fault; None if none is left."""
        key = (faults, kind)
        if key not in self._spent:
            left = dict(self._faults[faults])
            left[kind] = left.get(kind, 0) - 1
            self._spent[key] = None if left[kind] < 0 else self._faults.number(tuple(left.items()))
        return self._spent[key]

    def _happened(self, history: int, breaks: int, crashed: int) -> int:
        before = self._histories[history]
        rounds = before.crashed | {crashed} if crashed else before.crashed
        return self._histories.number(History(max(before.broken, breaks), rounds))

    def _outside_steps(self, state: Global) -> Iterator[tuple[Global, bool]]:
        """Yield the steps from outside: the user closes the run, or a node joins."""
        left = self._spend(state[1], "close")
        if left is not None:
            decision = self.code.decide.close(self.register(state), "closed")
            if decision.next is not None:
                yield self._changed((state[0], left, *state[2:]), self._registers.number(_bare(decision.next))), True
        left = self._spend(state[1], "give up")
        if left is not None and self.register(state).phase is Phase.RUNNING:
            decision = self.code.decide.fail(self.register(state), "an agent has given up")
            yield self._changed((state[0], left, *state[2:]), self._registers.number(_bare(decision.next))), True
        left = self._spend(state[1], "come")
        if left is not None:
            place = next(i for i in range(3, len(state)) if self._slots[state[i]] is None)
            for comer in self._comers(self.slots(state), place):
                yield (state[0], left, *state[2:place], self._slots.number(comer), *state[place + 1 :]), True

    def _readings(self, register: int, place: int, slots: list[int]) -> list[int]:
        """Yield the slots that can follow from a turn of the rendezvous at ``place``. Observers may differ."""
        number = slots[place - 3]
        key = (register, place, number, *(self._visible(slot) for slot in slots))
        if key not in self._read:
            slot = self._slots[number]
            found: dict[int, None] = {}
            for reader in _renewed(slot, self.rules) if slot is not None and slot.up else ():
                others = [s for i, n in enumerate(slots, 3) if i != place and (s := self._slots[n]) is not None]
                for after in self._decisions(self._registers[register], reader, others):
                    found[self._slots.number(after)] = None
            self._read[key] = list(found)
        return self._read[key]

    def _visible(self, number: int) -> int:
        """Return the part of a slot that other nodes can see."""
        if number not in self._seen:
            slot = self._slots[number]
            seen = slot and (slot.published, slot.lease, slot.up or self.rules.guard)
            self._seen[number] = self._looks.number(seen)
        return self._seen[number]

    def _decisions(self, register: State, reader: Slot, others: list[Slot]) -> Iterator[Slot]:
        """Yield the reader after it has read the register and the leases of ``others``."""
        informed = self._without_idle_news(reader._replace(news=self._news(register, reader)))
        for alive in product(*(_liveness(slot, self.rules) for slot in others)):
            seen = {s.published.node: Seen(s.published, a) for s, a in zip(others, alive, strict=True)}
            seen[reader.published.node] = Seen(reader.published, alive=True)
            decision = self.code.decide.decide(register, View(seen, quorum_for=1e9))
            _judge_decision(register, decision.next, seen)
            pending = self._registers.number(_bare(decision.next)) if decision.next is not None else None
            yield informed._replace(pending=pending)

    def _news(self, register: State, reader: Slot) -> News:
        """Return the observation of the reader. If the lease has expired again, the observation is too old."""
        known = _known(register, reader.member.node)
        transition, same = (
            reader.machine.observe(state, _HELD, 0.0, settled=True, polls=self.rules.polls)
            for state in (register, known)
        )
        assert register.phase.final or transition == same, f"{transition} != {same}"
        settled = reader.lease is LeaseIs.HELD or not self.rules.settled
        return News(self._registers.number(known), settled, reader.lease is not LeaseIs.EXPIRED or not self.rules.fresh)

    def _changed(self, state: Global, new: int) -> Global:
        """Yield the states after a change of the register. Commits after the previous version will fail."""
        idle = [self._without_pending(number)[0] for number in state[3:]]
        change = (state[0], new, state[2], *idle)
        if change not in self._changes:
            _judge_change(self._registers[state[0]], self._registers[new], self.slots(state), self._histories[state[2]])
            self._changes.add(change)
        return (new, *state[1:3], *(idle if self.rules.compare else state[3:]))

    def _without_pending(self, number: int) -> tuple[int, int | None]:
        """Return the slot after its commit or the failure of it, and the state that it was about to commit."""
        if number not in self._idle:
            slot = self._slots[number]
            idle = number if slot is None or slot.pending is None else self._slots.number(slot._replace(pending=None))
            self._idle[number] = idle, slot and slot.pending
        return self._idle[number]

    def story(self, before: Global, after: Global) -> str:
        """Describe the difference between two states."""
        old, new = self.register(before), self.register(after)
        changes = [f"the run is {new.phase.value}, round {new.round}"] if before[0] != after[0] else []
        for a, b in zip(before[3:], after[3:], strict=True):
            one, two = self._slots[a], self._slots[b]
            if two is not None and a != b:
                changes.append(f"{two.member.node} {_change(one, two)}")
        return "; ".join(changes) if old is not new or changes else "nothing"

    # Properties

    def judge(self, state: Global) -> None:
        """Raise Broken if the running workers violate a property."""
        if state[3:] not in self._judged:
            _judge_groups([slot for slot in self.slots(state) if slot.running is not None])
            self._judged.add(state[3:])

    # Steps of a node

    def _steps_of(self, slot: Slot) -> Iterator[Step]:
        for step in (*self._agent_steps(slot), *self._worker_steps(slot), *self._mishaps(slot)):
            yield step._replace(slot=self._without_idle_news(step.slot))

    def _agent_steps(self, slot: Slot) -> Iterator[Step]:
        """The agent executes its remaining actions, ends, or handles its observation."""
        machine = slot.machine
        if slot.stopping:
            yield Step(slot._replace(running=None), breaks=slot.running.round)
        elif machine.left or machine.member.final:
            _demand(not machine.parked, lambda: f"{slot.member.node} leaves while workers of it are parked")
            yield Step(_departed(slot, machine))
        elif slot.news is not None:
            yield self._execute(slot, self._observe(slot, slot.news))
        if machine.stop_deadline is not None:
            yield self._execute(slot, machine.stop_timed_out())

    def _observe(self, slot: Slot, news: News) -> Any:
        now = 0.0 if news.fresh else _HELD.end
        state = self._registers[news.state]
        return slot.machine.observe(state, _HELD, now, settled=news.settled, polls=self.rules.polls)

    def _execute(self, slot: Slot, transition: Any, **changes: Any) -> Step:
        """Execute the actions of an event. Workers that are stopped after a publication are stopped in another step.

        Parked workers count as stopped: they cannot take part in their round any more.
        """
        names = [type(action).__name__ for action in transition.actions]
        machine = replace(transition.machine, started=False, leaves_by=0.0)  # on which no action depends here
        running, breaks = slot.running, 0
        if "StartWorkers" in names:
            running = machine.part
        ends = next((i for i, name in enumerate(names) if name in ("ParkWorkers", "StopWorkers")), None)
        if running is not None and ends is not None and "Publish" not in names[:ends]:
            running, breaks = None, running.round
        after = slot._replace(**{"machine": machine, "running": running, **changes})
        if "Finish" in names:
            return Step(_departed(after, machine), breaks=breaks)
        return Step(after, breaks=breaks)

    def _worker_steps(self, slot: Slot) -> Iterator[Step]:
        """The workers end."""
        machine = slot.machine
        if machine.part is None:
            return
        round = machine.part.round
        yield self._execute(slot, machine.workers_succeeded(final=self.rules.final), running=None)
        if machine.stop_deadline is not None:
            yield self._execute(slot, machine.workers_stopped(parked=True), running=None)
        report = Failure(round, slot.member.node, machine.part.first_rank, 0, 1, "")
        failed = self._execute(slot, machine.worker_failed(report)).slot
        yield Step(failed, "fail", breaks=round, crashed=round)
        yield Step(failed, "echo", breaks=round)

    def _mishaps(self, slot: Slot) -> Iterator[Step]:
        machine, round = slot.machine, slot.running.round if slot.running else 0
        if slot.lease is LeaseIs.REGAINED:  # meanwhile each late reader has read again
            yield Step(slot._replace(lease=LeaseIs.HELD))
        yield Step(self._gone(slot._replace(lease=LeaseIs.EXPIRED), slot.published), "crash", breaks=round)
        if slot.member.node_state is not NodeState.SUCCEEDED:
            yield Step(_departed(slot, machine), "leave", breaks=round)
            if not machine.leaving:
                yield self._execute(slot, machine.leave(Notice("", 1.0), 0.0, self.rules.polls))._replace(fault="warn")
        if slot.lease is not LeaseIs.EXPIRED:
            news = slot.news and slot.news._replace(fresh=not self.rules.fresh)
            changes = {"running": None, "news": news, "lease": LeaseIs.EXPIRED}
            yield self._execute(slot, machine.lease_expired(), **changes)._replace(fault="expire", breaks=round)

    def _gone(self, slot: Slot, last: Member) -> Slot:
        """Return the slot after its node is gone. ``last`` is its last publication."""
        return slot._replace(
            up=False, machine=self._machine(last), published=last, news=None, pending=None, running=None
        )

    def _without_idle_news(self, slot: Slot) -> Slot:
        """Return the slot without an observation from which no action follows."""
        if slot.news is None or (slot.up and self._observe(slot, slot.news).actions):
            return slot
        return slot._replace(news=None)

    def _machine(self, member: Member) -> Any:
        return self.code.module(NODE).NodeStateMachine(member)

    def _newcomer(self, name: str, incarnation: int, order: int) -> Slot:
        member = Member(f"{name}@{incarnation}", NodeState.READY, -1, order + 1, name, 0, order)
        return Slot(True, self._machine(member), member)

    def _comers(self, slots: list[Slot], place: int) -> Iterator[Slot]:
        """Yield the nodes that may join: a new one, or one that is gone, with or without proof that its previous
        incarnation is dead."""
        yield self._newcomer(f"n{place - 3}", 0, place - 3)
        for before in [slot.published for slot in slots if not slot.up]:
            again = self._newcomer(before.name, place, before.order)
            yield again
            knowing = replace(again.published, dead=(before.node,))
            yield again._replace(machine=self._machine(knowing), published=knowing)


def _renewed(slot: Slot, rules: Rules) -> Iterator[Slot]:
    """Return the slot as it reads. Its lease is renewed first, but may have expired again meanwhile."""
    if slot.lease is LeaseIs.EXPIRED:
        yield slot
    lag = slot.lease is LeaseIs.REGAINED or (rules.lag and slot.lease is LeaseIs.EXPIRED)
    yield slot._replace(published=slot.member, lease=LeaseIs.REGAINED if lag else LeaseIs.HELD)


def _departed(slot: Slot, machine: Any) -> Slot:
    """Return the slot after its agent has published its departure, or has a success published, and has ended."""
    machine = machine.depart().machine
    ended = slot._replace(up=False, machine=machine, published=machine.member, lease=LeaseIs.EXPIRED)
    return ended._replace(news=None, pending=None, running=None)


def _known(state: State, node: str) -> State:
    """Return the values on which the actions of ``node`` depend."""
    if state.phase.final:
        return state
    requested = state.phase is Phase.JOINING and state.grace > 0
    known = replace(state, spent=_Spent(), cause=state.cause if requested else None)
    if any(p.node == node for p in state.participants) and state.phase is Phase.RUNNING:
        return known
    grace = state.grace if state.phase is Phase.JOINING else 0.0
    return replace(known, phase=Phase.JOINING, participants=(), grace=grace)


def _liveness(slot: Slot, rules: Rules) -> tuple[bool, ...]:
    """Return whether an observer may take a node for alive, for dead, or for either."""
    return (True,) if slot.lease is LeaseIs.HELD and rules.guard else (True, False)


class _Spent(dict[str, int]):
    """The budget of faults, hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _bare(state: State) -> State:
    """Return the state without the values that are only for people."""
    return replace(state, spent=_Spent(state.spent), failures=(), standbys=(), reason="")


def _change(before: Slot | None, after: Slot) -> str:
    """Describe the change of a slot."""
    if before is None:
        return "comes"
    says = f"says {after.member.node_state.value} {after.member.round}" if before.member != after.member else ""
    runs = f"runs round {after.running.round}" if after.running else "has no workers any more"
    changes = {
        "has gone": not after.up,
        says: bool(says),
        runs: before.running != after.running,
        f"has its lease {after.lease.value}": before.lease != after.lease,
        "publishes": before.published != after.published,
        f"has read {after.news}": before.news != after.news and after.news is not None,
        "decides to continue": before.pending != after.pending and after.pending is not None,
    }
    return ", ".join(what for what, true in changes.items() if true) or "reads nothing new"


# Checks


def _judge_groups(running: list[Slot]) -> None:
    parts = [slot.running for slot in running if slot.running is not None]
    rounds = {part.round for part in parts}
    _demand(len(rounds) <= 1, lambda: f"workers of rounds {sorted(rounds)} run at the same time")
    alike = {(p.round, p.world_size, p.group_world_size, p.master_addr, p.master_port) for p in parts}
    ranks = [rank for p in parts for rank in range(p.first_rank, p.first_rank + p.local_world_size)]
    _demand(len(alike) <= 1 and len(set(ranks)) == len(ranks), lambda: f"the group disagrees: {parts}")
    _demand(all(rank < parts[0].world_size for rank in ranks), lambda: f"a rank is beyond the world: {parts}")


def _judge_decision(old: State, new: State | None, seen: Mapping[str, Seen]) -> None:
    if new is not None and new.phase is Phase.RUNNING:
        members = [member for p in old.participants if (member := seen[p.node].member) is not None]
        finished = [m.node for m in members if m.final and m.round == old.round]
        _demand(not finished, lambda: f"round {new.round} follows the success of {finished}, which was final")


def _judge_change(old: State, new: State, slots: Iterable[Slot], history: History) -> None:
    by_node = {slot.member.node: slot for slot in slots}
    formed = new.phase is Phase.RUNNING
    _demand(not old.phase.final, lambda: f"a run that has {old.phase.value} continued")
    _demand(new.round == old.round + formed, lambda: f"round {old.round} was followed by {new.round}")
    ended = new.phase is Phase.JOINING and new.round > 0
    _demand((new.cause is not None) == ended, lambda: f"cause {new.cause} in phase {new.phase.value}")
    nodes = [p.node for p in new.participants]
    if formed:
        limits = new.settings.nodes
        _demand(limits.min <= len(nodes) <= limits.max, lambda: f"{len(nodes)} nodes, not {limits.min}..{limits.max}")
        _demand(len(nodes) % limits.multiple == 0, lambda: f"{len(nodes)} nodes, no multiple of {limits.multiple}")
        _demand(len({p.name for p in new.participants}) == len(nodes), lambda: f"a node is a member twice: {nodes}")
        stands = {node: (by_node[node].published.node_state, by_node[node].published.round) for node in nodes}
        admitted = all(
            node_state is NodeState.LEFT or (node_state, at) == (NodeState.READY, old.round)
            for node_state, at in stands.values()
        )
        _demand(admitted, lambda: f"not all were ready for round {new.round}: {stands}")
    else:
        _demand(new.participants == old.participants, lambda: "the members changed within a round")
    if new.phase is Phase.SUCCEEDED:
        done = [by_node[n].member for n in nodes]
        succeeded = all((m.node_state, m.round) == (NodeState.SUCCEEDED, new.round) for m in done)
        _demand(succeeded, lambda: f"success without all: {done}")
        well = old.phase is Phase.RUNNING or old.grace > 0
        _demand(well, lambda: "success of a round with a fault")
    _judge_budget(old, new, by_node, history)


def _judge_budget(old: State, new: State, by_node: dict[str, Slot], history: History) -> None:
    rise = {cause: count - old.spent.get(cause, 0) for cause, count in new.spent.items()}
    charging = old.cause is not None and new.phase in (Phase.RUNNING, Phase.FAILED)
    exact = min(rise.values(), default=0) >= 0 and sum(rise.values()) == charging
    _demand(exact, lambda: f"{old.spent} became {new.spent}")
    charged = charging and bool(rise.get(Cause.WORKER.value))
    _demand(not charged or old.round in history.crashed, lambda: f"round {old.round} was charged for nothing")
    members = [by_node[p.node].published for p in old.participants]
    back = all(m.node_state in (NodeState.READY, NodeState.LEFT) or m.final for m in members)
    _demand(not charged or back, lambda: f"round {old.round} was charged, but a node did not return")
    exceeded = new.restarts > new.settings.restarts.max
    hopeless = any(m.final for m in members) or old.phase is Phase.RUNNING
    may_fail = (new.phase is Phase.FAILED) == exceeded or (new.phase is Phase.FAILED and hopeless)
    _demand(may_fail or new.phase is Phase.CLOSED, lambda: f"{new.phase}: {new.spent}")


def _demand(true: bool, what: Callable[[], str]) -> None:
    if not true:
        raise Broken(what())
