"""The referee of a simulation. It checks the real events, not the state of the run.

The simulated nodes report each action: running worker groups, groups that failed by themselves, and the beginning and
end of disturbances. The referee calls no code under test except the values of `hpcelastic.protocol.state`.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from math import inf

from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.state import Cause, Member, NodeState, Participant, Phase, State, name_of

_ENDS_BY = {Phase.JOINING, Phase.SUCCEEDED, Phase.CLOSED}
_STEPS = {
    Phase.RUNNING: {Phase.RUNNING, *_ENDS_BY},
    Phase.JOINING: {Phase.JOINING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED, Phase.CLOSED},
}

_LONG_DEAD = 20.0
"""Seconds after which every observer has seen a lease expire; see `simulation`."""

_LATE = 8.0
"""Seconds of them from the expiry of the lease on."""

_STALE = 3.0
"""Seconds after which a reading of the leases shows the last renewal of a lease."""


class Violation(AssertionError):
    """A property of the protocol is violated."""


class Referee:
    """The checks of one simulation."""

    def __init__(self) -> None:
        self.published_states: set[tuple[str, NodeState, int]] = set()
        self.offered: set[tuple[str, NodeState, int, int]] = set()
        """How many workers nodes have offered in which state of which round, with and without those that start."""

        self.places: dict[str, str] = {}
        """By name: the switches above the node."""

        self.reported: set[tuple[str, int]] = set()
        self.warned: set[str] = set()
        """Nodes that have published that they must leave."""

        self.early: set[tuple[str, int]] = set()
        """Nodes and rounds whose workers have ended their step on request."""

        self._final: set[tuple[str, int]] = set()
        """Nodes that have succeeded in a round and start no workers again."""

        self.finished: set[tuple[str, int]] = set()
        self.crashed: set[int] = set()
        """Rounds in which a worker failed by itself, not because a peer was gone."""

        self._fenced: set[int] = set()
        """Rounds in which a lease expired before any worker had failed by itself."""

        self.gone_at: dict[str, float] = defaultdict(lambda: inf)
        self.disturbed_until: dict[str, float] = defaultdict(lambda: -inf)
        """By node: when it was last killed, frozen, disconnected from the disk or told to leave; inf while that
        lasts."""

        self._looks: dict[str, list[float]] = defaultdict(list)
        """By node: the times at which it has listed the leases."""

        self.begun: dict[int, int] = defaultdict(int)
        """By worker: additions to the counter that it has begun."""

        self.counted = 0
        """Acknowledged additions."""

        self._made: dict[int, int] = defaultdict(int)

        self.moves = 0
        """Publications by workers."""

        self._claimed = 0
        self._sum = 0
        self._version = 0
        self._parts: dict[int, dict[int, Assignment]] = defaultdict(dict)
        self._began: dict[int, float] = {}

    # Reports of the nodes

    def published(self, member: Member) -> None:
        """A node has renewed its lease with this content."""
        self.published_states.add((member.node, member.node_state, member.round))
        self.places[member.name] = member.topology
        every = {member.local_world_size, member.local_world_size + member.starting}
        for workers in every if member.node_state is NodeState.READY else {member.local_world_size}:
            self.offered.add((member.node, member.node_state, member.round, workers))
        if member.final:
            self._final.add((member.node, member.round))
        if member.leaving is not None:
            self.warned.add(member.node)
        if member.failure is not None:
            self.reported.add((member.node, member.failure.round))

    def disturbed(self, node: str, until: float) -> None:
        """A node may be called lost until that time, and later only if it is disturbed again."""
        self.disturbed_until[node] = max(until, self.disturbed_until[node])

    def looked(self, node: str, now: float) -> None:
        """A node lists the leases."""
        self._looks[node].append(now)

    def fenced(self, round: int) -> None:
        """A node's lease has expired, and its workers of a round were killed."""
        if round not in self.crashed:
            self._fenced.add(round)

    def broken(self, what: str) -> None:
        """Report an event that must never happen."""
        raise Violation(what)

    def claimed(self, round: int) -> None:
        """A worker has claimed a directory: no older round publishes from now on."""
        self._claimed = max(self._claimed, round)

    def moved(self, round: int, what: str) -> None:
        """A worker of a round has published."""
        _demand(round >= self._claimed, f"{what} was published though round {self._claimed} had claimed")
        self._claimed = round
        self.moves += 1

    def summed(self, value: int, worker: int) -> None:
        """A worker has given the counter a new value."""
        _demand(value == self._sum + 1, f"an update was lost: the counter went from {self._sum} to {value}")
        self._sum = value
        self._made[worker] += 1
        made, begun = self._made[worker], self.begun[worker]
        _demand(made <= begun, f"a worker that added {begun} times to the counter has added {made}")

    def finish(self) -> None:
        """The run has ended, and no message is under way."""
        _demand(self.counted <= self._sum, f"{self.counted} additions were acknowledged, and {self._sum} done")

    def started(self, node: str, part: Assignment, state: State) -> None:
        """A node starts its workers in the round that formed as ``state``."""
        parts = self._parts[part.round]
        _demand(part.group_rank not in parts, f"group rank {part.group_rank} of round {part.round} started twice")
        _demand(state.participants[part.group_rank].node == node, f"{node} started as group rank {part.group_rank}")
        parts[part.group_rank] = part
        everywhere = {
            replace(p, group_rank=0, first_rank=0, local_world_size=0, role="", role_first_rank=0, role_world_size=0)
            for p in parts.values()
        }  # all other fields must be the same on all nodes
        _demand(len(everywhere) == 1, f"the nodes of round {part.round} disagree: {everywhere}")
        ranks = [rank for p in parts.values() for rank in range(p.first_rank, p.first_rank + p.local_world_size)]
        _demand(len(set(ranks)) == len(ranks), f"two workers of round {part.round} have one rank: {sorted(ranks)}")
        _demand(set(ranks) <= set(range(part.world_size)), f"a rank is beyond the world size: {sorted(ranks)}")
        if len(parts) == part.group_world_size:
            _demand(len(ranks) == part.world_size, f"round {part.round}: {len(ranks)} ranks of {part.world_size}")

    def running(self, rounds: set[int]) -> None:
        """Workers of these rounds run at this moment."""
        _demand(len(rounds) <= 1, f"workers of rounds {sorted(rounds)} run at the same time")

    def reopened(self, state: State) -> None:
        """The user has reopened the run as ``state``."""
        self._version += 1

    def committed(self, number: int, old: State, new: State, writer: str, now: float, interval: float) -> None:
        """Version ``number`` of the register was written.

        Nodes that are no leaders read the leases every ``interval`` seconds.
        """
        _demand(number == self._version + 1, f"version {number} was written after version {self._version}")
        self._version = number
        _demand(new.phase in _STEPS.get(old.phase, ()), f"a run went from {old.phase.value} to {new.phase.value}")
        formed = new.phase is Phase.RUNNING and old.phase is Phase.JOINING
        _demand(new.round == old.round + formed, f"round {old.round} was followed by {new.round} in {new.phase.value}")
        _demand((new.run_id, new.settings) == (old.run_id, old.settings), "run id or settings changed")
        _demand(formed or new.participants == old.participants, f"participants changed within round {new.round}")
        pending = new.phase is Phase.JOINING and new.round > 0
        _demand((new.cause is not None) == pending, f"cause {new.cause} in phase {new.phase.value}")
        if formed:
            self._began[new.round] = now
            self._judge_round(old, new)
            # A writer that was disturbed may have seen an older renewal only at its end, and waits for its expiry.
            sees = now > self.disturbed_until[writer] + _LATE
            seen_at = {p.node: self._saw_last_renewal(writer, p.node, interval) for p in new.participants if sees}
            dead = [node for node, seen in seen_at.items() if now - seen > _LONG_DEAD]
            _demand(not dead, f"{dead} died long ago and are members of round {new.round}")
        _demand(not new.grace or pending, f"a grace in phase {new.phase.value}")
        if pending and old.phase is Phase.RUNNING:
            self._judge_cause(new)
        self._judge_budget(old, new)
        if new.phase is Phase.SUCCEEDED:
            unfinished = [p.node for p in new.participants if (p.node, new.round) not in self.finished]
            _demand(not unfinished, f"success without {unfinished}")
            _demand(old.phase is Phase.RUNNING or old.grace > 0, "success of a round with a fault")

    def undisturbed(self, state: State) -> bool:
        """True if no member can have been lost in the round that runs or has just ended."""
        return not any(self._disturbed(p.node, state.round) for p in state.participants)

    # Checks

    def _judge_round(self, old: State, new: State) -> None:
        # A node that was lost before it published this may have been missed.
        last = [p.node for p in old.participants if not self._disturbed(p.node, old.round) and self._is_final(p, old)]
        _demand(not last, f"round {new.round} followed the success of {last}, which was final")
        nodes, least, max_nodes = [p.node for p in new.participants], new.settings.nodes.min, new.max_nodes
        _demand(least <= len(nodes) <= max_nodes, f"{len(nodes)} nodes, not {least}..{max_nodes}")
        unwanted = [node for node in nodes if name_of(node) in new.drained]
        _demand(not unwanted, f"{unwanted} are drained and are members")
        _demand(not set(nodes) & set(new.standbys), f"{new.standbys} are standbys and members")
        multiple, within = new.settings.nodes.multiple, new.settings.nodes.within
        _demand(len(nodes) % multiple == 0, f"{len(nodes)} nodes, no multiple of {multiple}")
        size = min(max_nodes, self._most((*nodes, *new.standbys), new))
        _demand(len(nodes) == size, f"{new.standbys} are standbys although there are seats for {size} nodes")
        unready = [n for n in (*nodes, *new.standbys) if (n, NodeState.READY, old.round) not in self.published_states]
        _demand(not unready, f"{unready} were never ready for round {new.round}")
        sizes = [p for p in new.participants if not self._has_offered(p, NodeState.READY, old.round)]
        _demand(not sizes, f"{sizes} have not offered so many workers for round {new.round}")
        _demand(all(p.local_world_size > 0 for p in new.participants), "a member without workers")
        twins = any(len({p.name for p in state.participants}) < len(state.participants) for state in (old, new))
        _demand(not twins, f"a node is a member twice: {nodes}")
        before = [p.node for p in old.participants]
        if within:
            self._judge_groups(old, new)
            return
        survivors = [node for node in before if node in nodes]
        old_names = [p.name for p in old.participants]
        _demand(
            [n for n in nodes if n in survivors] == survivors,
            f"survivors have a new order: {before}, {nodes}",
        )
        fresh = [i for i, p in enumerate(new.participants) if p.name not in old_names]
        moved = [p.name for p, other in zip(old.participants, new.participants, strict=False) if p.name != other.name]
        stayed = set(moved) & {p.name for p in new.participants}
        _demand(len(nodes) != len(before) or not stayed, f"{stayed} have other ranks in a round of the same size")
        left_out = set(before) & set(new.standbys)
        _demand(not left_out or not fresh, f"{left_out} are standbys although a newcomer is a member")

    def _most(self, nodes: Collection[str], state: State) -> int:
        """Return how many of the nodes make whole groups."""
        multiple, within = state.settings.nodes.multiple, state.settings.nodes.within
        counts = Counter(self.places[name_of(node)] if within else "" for node in nodes)
        return sum(count - count % multiple for count in counts.values())

    def _judge_groups(self, old: State, new: State) -> None:
        """Check that each group is under one switch, and that those which lost no node stay as they are."""
        multiple = new.settings.nodes.multiple
        before, after = ([p.name for p in state.participants] for state in (old, new))
        groups = [after[start : start + multiple] for start in range(0, len(after), multiple)]
        apart = [group for group in groups if len({self.places[name] for name in group}) > 1]
        _demand(not apart, f"{apart} are groups, but not under one switch")
        whole = [before[start : start + multiple] for start in range(0, len(before), multiple)]
        whole = [group for group in whole if not {*group} - {*after, *map(name_of, new.standbys)}]
        stayed = [group for group in groups if group in whole]
        _demand(stayed == whole[: new.max_nodes // multiple], f"{whole} did not stay as they were: {groups}")

    def _judge_cause(self, state: State) -> None:
        """Check that the published reason for the end of the round is true."""
        cause, inside = state.cause, {p.node for p in state.participants}
        if cause is Cause.WORKER:
            true = any((node, state.round) in self.reported for node in inside)
        elif cause is Cause.LEAVE:
            drained = {node for node in inside if name_of(node) in state.drained}
            gone = {node for node, node_state, _ in self.published_states if node_state is NodeState.LEFT}
            true = bool(inside & (gone | self.warned | drained))
        elif cause is Cause.SCALE:
            true = len(inside) > state.max_nodes
        elif cause is Cause.JOIN:
            others = {
                n
                for n, node_state, round in self.published_states
                if node_state is NodeState.READY and round == state.round
            } - inside
            true = len(inside) < min(state.max_nodes, self._most(inside | others, state))
            true = true or any(
                p.local_world_size < workers
                for p in state.participants
                for node, node_state, round, workers in self.offered
                if (node, node_state, round) == (p.node, NodeState.RUNNING, state.round)
            )
        else:
            true = not self.undisturbed(state)
        _demand(true, f"round {state.round} was ended by {cause}, which was not the cause: {state.reason}")

    def _judge_budget(self, old: State, new: State) -> None:
        rise = {cause: count - old.spent.get(cause, 0) for cause, count in new.spent.items()}
        fell = min(rise.values(), default=0) < 0 or not set(old.spent) <= set(new.spent)
        _demand(not fell, f"{old.spent} decreased to {new.spent}")
        charging = old.cause is not None and new.phase in (Phase.RUNNING, Phase.FAILED)
        _demand(sum(rise.values()) == charging, f"{old.spent} became {new.spent} for a round ended by {old.cause}")
        if not charging:
            return
        charged = bool(rise.get(Cause.WORKER.value))
        _demand(not charged or self._all_back(old), f"round {old.round} was charged, but a node did not return")
        what = f"round {old.round} was charged, but no worker failed by itself, or a lease had expired"
        _demand(not charged or self._failed_alone(old), what)
        must = old.cause is Cause.WORKER and self._failed_alone(old) and self.undisturbed(old)
        _demand(charged or not must, f"round {old.round} ended only by a failure, and was not charged")
        exceeded = new.restarts > new.settings.restarts.max
        final = [p.node for p in old.participants if self._is_final(p, old)]
        # A node that was lost before it published this may have been missed.
        hopeless = any(not self._disturbed(node, old.round) for node in final)
        true = exceeded or bool(final) if new.phase is Phase.FAILED else not (exceeded or hopeless)
        _demand(true, f"{new.phase.value} with {new.spent} of {new.settings}")

    def _failed_alone(self, state: State) -> bool:
        """True if a worker failed by itself, and every member of the round published afterwards that it is ready."""
        return state.round in self.crashed - self._fenced and self._all_back(state)

    def _all_back(self, state: State) -> bool:
        return all(
            (p.node, NodeState.READY, state.round) in self.published_states or self._is_final(p, state)
            for p in state.participants
        )

    def _has_offered(self, p: Participant, node_state: NodeState, round: int) -> bool:
        return (p.node, node_state, round, p.local_world_size) in self.offered

    def _is_final(self, participant: Participant, state: State) -> bool:
        return (participant.node, state.round) in self._final

    def _saw_last_renewal(self, writer: str, node: str, interval: float) -> float:
        """Return when ``writer`` has seen the last renewal of a node at the latest; inf if that node is not gone.

        A writer that is no leader reads the leases every ``interval`` seconds.
        """
        gone_at, looks = self.gone_at[node], self._looks[writer]
        first = bisect(looks, gone_at + _STALE)
        return min([gone_at + interval, *looks[first : first + 1]])

    def _disturbed(self, node: str, round: int) -> bool:
        return self.disturbed_until[node] >= self._began.get(round, inf)


def _demand(true: bool, what: str) -> None:
    if not true:
        raise Violation(what)
