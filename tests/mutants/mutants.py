"""Possible faults of the protocol. Each is one edit of the source."""

from tests.protocol.under_test import (
    ASSIGNMENT,
    BUDGET,
    DECIDE,
    GROUPS,
    KNOWN,
    LEASE_KEEPER,
    LEASES,
    LIVENESS,
    OBSERVED_LEASES,
    RANKING,
    REGISTER,
    RENDEZVOUS,
    RUN,
    Patch,
)

_READY = "m.node_state is ready and m.round == round and m.leaving is None"
_STOPPED = (
    "return member.node_state is NodeState.LEFT or "
    "(member.node_state is NodeState.READY and member.round >= state.round)"
)
_SUCCESS_STAYS = "if _is_in(member, NodeState.SUCCEEDED, state.round):\n            continue"
_ECHO = "if any(node not in stopped for node in state.ranks):"
_ENDED = "return replace(state, phase=Phase.JOINING, cause=cause, grace=grace, lost=lost, standbys=(), reason=reason)"
_LAST_CALL = " and view.quorum_for < state.settings.rendezvous.last_call:"
_CLOSED = 'if state.phase.final:\n        return Decision(None, f"the run has {state.phase.value} already")'
_GONE = "return _stopped(state, view.nodes[node].member) or not _alive(view, node)"
_ROOM = "state.size_of([*state.participants, *outside]) > len(state.participants)"
_CHOSEN = "ranked(state.participants, ready, size)"
_WITH_STARTING = "with_starting = fitting < nodes.min"
_FENCED = (
    "if member is not None and member.node_state is NodeState.READY and member.round >= state.round:\n"
    "            return Cause"
)
_DEPARTURE = """        if member is not None and member.node_state is NodeState.LEFT:
            return Cause.LEAVE, f"{member.name} left", 0.0, ""
"""
_LOSS = """        if not _alive(view, node):
            return Cause.NODE, f"{name_of(node)} was lost", 0.0, node
"""
_ALIVE = "return node not in view.dead"
_LOSES = "if not _alive(view, node) and not _stopped(state, member) and node not in done:"
_COMMIT = """            if not self._next_is_free(after):
                return False
            began = self._clock()
            result = files.link_draft(draft)
"""
_OVERWRITE = """            began = self._clock()
            files.publish(path, data)
            result = files.LinkResult.CREATED
"""

MUTANTS = {
    "an effect of another failure may be the root cause": Patch(
        DECIDE, "effect = failure.collective or failure.echo", "effect = False"
    ),
    "failures are in the order of the nodes' clocks": Patch(
        DECIDE,
        "return effect, failure.happened is None, failure.happened or 0.0, failure.rank",
        "return effect, False, failure.timestamp, failure.rank",
    ),
    "a node that is ready for an older round is a member of the next round": Patch(
        DECIDE, _READY, _READY.replace(" and m.round == round", "")
    ),
    "a dead node is a member of the next round": Patch(
        DECIDE, "if m.node not in dead and not (drains", "if not (drains"
    ),
    "a node whose heartbeat was not seen is a member of the next round": Patch(
        DECIDE, "    if unproved:\n", "    if False:\n"
    ),
    "two incarnations of a node are members of a round": Patch(
        DECIDE, "if len({m.name for m in members}) == len(members):", "if True:"
    ),
    "the incarnation that was a member is preferred": Patch(
        DECIDE, "lambda m: (m.node not in state.ranks, m.node)", "lambda m: (m.node in state.ranks, m.node)"
    ),
    "a round forms although workers are still running": Patch(DECIDE, "    if busy:\n", "    if False:\n"),
    "a node that is ready for an older round counts as stopped": Patch(
        DECIDE, _STOPPED, "return member.node_state in (NodeState.LEFT, NodeState.READY)"
    ),
    "a node that leaves after its success counts as lost": Patch(
        DECIDE, _SUCCESS_STAYS, "if False:\n            continue"
    ),
    "the run waits for a lost member": Patch(DECIDE, _GONE, _GONE.replace(" or not _alive(view, node)", "")),
    "a lost member does not end the round": Patch(DECIDE, "if not _alive(view, node):", "if False:"),
    "a fenced member does not end the round": Patch(DECIDE, _FENCED, "if False:\n            return Cause"),
    "a loss takes precedence over a departure": Patch(DECIDE, _DEPARTURE + _LOSS, _LOSS + _DEPARTURE),
    "a dead incarnation counts as alive": Patch(
        DECIDE, _ALIVE, "return not any(s.member and node in s.member.dead for s in view.nodes.values())"
    ),
    "the report of a newer incarnation is ignored": Patch(DECIDE, _ALIVE, "return view.nodes[node].alive"),
    "nodes.min is ignored": Patch(DECIDE, "if fitting < nodes.min:", "if not ready:"),
    "nodes.max is ignored when a round forms": Patch(DECIDE, _CHOSEN, "ranked(state.participants, ready, 99)"),
    "nodes.max is ignored when a newcomer waits": Patch(
        DECIDE, _ROOM, "state.settings.nodes.whole(len(state.participants) + len(outside)) > len(state.participants)"
    ),
    "a round has a group that is not whole": Patch(
        DECIDE, _CHOSEN, "ranked(state.participants, ready, state.max_nodes)"
    ),
    "a newcomer that completes no group ends the round": Patch(
        DECIDE, _ROOM, "state.max_nodes > len(state.participants)"
    ),
    "a node whose workers are all starting is a member": Patch(
        DECIDE, "if member.local_world_size > 0]", "if member.local_world_size >= 0]"
    ),
    "a round waits for all workers that are starting": Patch(DECIDE, _WITH_STARTING, "with_starting = True"),
    "a round does not wait for starting workers that it needs": Patch(DECIDE, _WITH_STARTING, "with_starting = False"),
    "a failure is not charged while another worker is starting in its place": Patch(
        DECIDE, "for m in returned if m.fenced", "for m in _with_workers(returned) if m.fenced"
    ),
    "workers without a place end no round": Patch(DECIDE, "            if more > 0:", "            if more > 99:"),
    "fewer workers than places end a round": Patch(DECIDE, "            if more > 0:", "            if more != 0:"),
    "standbys are not recorded": Patch(DECIDE, _CHOSEN, f"{_CHOSEN}[0], []"),
    "the last call never ends": Patch(DECIDE, _LAST_CALL, ":"),
    "a lost node whose lease has not expired is expected": Patch(
        DECIDE,
        "if m.node_state is ready and m.round < state.round:",
        "if m.node_state is not ready or m.round < state.round:",
    ),
    "there is no last call": Patch(DECIDE, _LAST_CALL, " and False:"),
    "a success of some nodes counts as the success of all": Patch(
        DECIDE, "if len(done) == len(state.participants):", "if done:"
    ),
    "a success in a round that is ending is ignored": Patch(
        DECIDE, "    done = _done(state, view) if state.grace else set()", "    done = set()"
    ),
    "a success of some nodes completes a round that is ending": Patch(
        DECIDE, "if done and len(done) == len(state.participants):", "if done:"
    ),
    "a newcomer interrupts a round that succeeds": Patch(
        DECIDE, "newcomer = None if done else _newcomer(state, view)", "newcomer = _newcomer(state, view)"
    ),
    "a round follows a final success": Patch(DECIDE, "    if finished:\n", "    if False:\n"),
    "a change of size ends a round after a final success": Patch(
        DECIDE,
        "planned = None if _finished(state, view) else _planned_end(state, view)",
        "planned = _planned_end(state, view)",
    ),
    "a node with a final success is waited for": Patch(
        DECIDE, "return member.final and member.round == state.round", "return False"
    ),
    "a departure closes the run": Patch(
        DECIDE, _ENDED, _ENDED.replace("Phase.JOINING", "Phase.CLOSED if cause is Cause.LEAVE else Phase.JOINING")
    ),
    "survivors get new seats": Patch(DECIDE, _CHOSEN, "ranked((), ready, size)"),
    "nodes of a group are anywhere": Patch(DECIDE, "    if nodes.within:\n", "    if False:\n"),
    "a group gets a node from another switch": Patch(
        GROUPS,
        "there[places[index]])",
        "there[next(place for place, members in there.items() if members)])",
    ),
    "a node that moved to another switch keeps its seat": Patch(
        GROUPS, "if m and m.topology == group[0].topology", "if m"
    ),
    "a whole group is dissolved for one that is not": Patch(GROUPS, "(groups[index].count(None), index)", "index"),
    "a newcomer displaces a node of a dissolved group": Patch(GROUPS, "(*staying, *ordered)", "ordered"),
    "newcomers that make no group are members": Patch(
        GROUPS, "members[: len(members) - len(members) % size]", "members"
    ),
    "names determine the order before switches": Patch(
        RANKING, "key=lambda m: ([_natural", "key=lambda m: (_natural(m.name), [_natural"
    ),
    "nodes of different jobs are ordered by their order within the job": Patch(
        RANKING, "m.order if one_job else 0", "m.order"
    ),
    "n10 comes before n2": Patch(RANKING, "[int(part) if part.isdecimal() else part for", "[part for"),
    "newcomers get no free seat": Patch(RANKING, " for seat, member in enumerate(seats) if member is None]", " in ()]"),
    "a smaller node displaces a member from its seat": Patch(RANKING, "product((True, False)", "product((False,)"),
    "a newcomer does not get the nearest seat": Patch(RANKING, "range(deepest, -1, -1)", "(0,)"),
    "a newcomer displaces a survivor": Patch(RANKING, "room = max_nodes - len(kept)", "room = max_nodes"),
    "newcomers precede the members at their switch": Patch(
        RANKING, "for m in (member, *followers", "for m in (*followers.pop(seat, []), member, *followers"
    ),
    "newcomers follow all members": Patch(RANKING, "if prefix in last), ())", "if False), ())"),
    "nodes of a switch are separated": Patch(RANKING, "if len(newcomers) <= room or all", "if True or all"),
    "the round number does not increase": Patch(DECIDE, "        round=state.round + 1,", "        round=state.round,"),
    "the round number increases by two": Patch(
        DECIDE, "        round=state.round + 1,", "        round=state.round + 2,"
    ),
    "a failure of an older round counts": Patch(DECIDE, "(f for f in found if f.round == state.round)", "found"),
    "each failed node spends a restart": Patch(
        DECIDE,
        "state.spent.get(cause.value, 0) + 1}",
        "state.spent.get(cause.value, 0) + max(1, len(_failures(state, view)))}",
    ),
    "a failure beside a loss spends a restart": Patch(DECIDE, _ECHO, "if False:"),
    "the failure of a fenced node spends a restart": Patch(DECIDE, " if m.fenced != state.round}", "}"),
    "a failure spends no restart": Patch(DECIDE, _ECHO, "if True:"),
    "a loss spends a restart": Patch(
        DECIDE,
        'return Cause.NODE, f"{name_of(node)} was lost", 0.0, node',
        'return Cause.WORKER, f"{name_of(node)} was lost"',
    ),
    "the budget is smaller by one": Patch(BUDGET, "if state.restarts > budget:", "if state.restarts >= budget:"),
    "the budget is ignored": Patch(BUDGET, "if state.restarts > budget:", "if False:"),
    "a failure spends two restarts": Patch(
        DECIDE,
        "return replace(state, cause=None, grace=0.0, spent=spent,",
        "return replace(state, grace=0.0, spent=spent,",
    ),
    "closing changes the phase of an ended run": Patch(DECIDE, _CLOSED, _CLOSED.replace("state.phase.final", "False")),
    "reopening removes the members": Patch(
        DECIDE,
        "replace(reopened, standbys=(), failures=(),",
        "replace(reopened, standbys=(), failures=(), participants=(),",
    ),
    "a loss does not end the grace period": Patch(DECIDE, _LOSES, "if False:"),
    "an expired lease does not end the grace period": Patch(
        DECIDE, "if member is not None and member.fenced == state.round and node not in done:", "if False:"
    ),
    "a node that leaves after its workers stopped ends the grace period": Patch(
        DECIDE, _LOSES, "if not _alive(view, node):"
    ),
    "a leaving node is a member of the next round": Patch(DECIDE, _READY, _READY.replace(" and m.leaving is None", "")),
    "a drained node is a member of the next round": Patch(
        DECIDE, "return state.drains if state.drained or state.retired else None", "return None"
    ),
    "the later of two warnings determines the grace period": Patch(DECIDE, "= min(leaving)", "= max(leaving)"),
    "two nodes get the same ranks": Patch(
        ASSIGNMENT, "first_rank=sum(sizes[:group_rank])", "first_rank=sum(sizes[: group_rank - 1])"
    ),
    "each node has its own master": Patch(
        ASSIGNMENT, "master_port=state.participants[0].port", "master_port=state.participants[group_rank].port"
    ),
    "workers start in a phase that has ended": Patch(ASSIGNMENT, "if state.phase is not Phase.RUNNING:", "if False:"),
    "a lease expires too early": Patch(LIVENESS, "limit = self._limit(age)\n", "limit = self._limit(age) / 3\n"),
    "a lease never expires": Patch(LIVENESS, "alive = not expired and ", "alive = True or "),
    "a heartbeat does not prove life": Patch(
        LEASES, "name.duration, LeaseName.follows)", "name.duration, lambda new, old: new.revision > old.revision)"
    ),
    "a lease has no heartbeat": Patch(LEASES, "self._heartbeat += 1", "self._heartbeat += 0"),
    "a lease is renewed only after a change": Patch(
        LEASE_KEEPER,
        "return self.held.start + interval - self._clock()",
        "return 1.0",
    ),
    "a change waits for the next renewal": Patch(
        RENDEZVOUS, "if member != self._lease.published or (not late and self._until", "if (not late and self._until"
    ),
    "leases are not read while a round runs": Patch(
        OBSERVED_LEASES, " or self._clock() - self.looked_at >= interval:", ":"
    ),
    "a lease counts as renewed in every turn": Patch(
        RENDEZVOUS,
        "(not late and self._until_renewal() <= 0):\n            self._renew(member)\n",
        "(not late and self._until_renewal() <= 0):\n            self._renew(member)\n"
        "        self._lease._hold(self._clock(), self._clock() + self._lease.duration.seconds)\n",
    ),
    "every lease counts as proof of life": Patch(
        LIVENESS, "age.proved = before - self._last_listing_end <= limit", "age.proved = True"
    ),
    "no lease counts as proof of life": Patch(
        LIVENESS, "age.proved = before - self._last_listing_end <= limit", "age.proved = False"
    ),
    "a change is used although the lease has expired since the last reading": Patch(
        KNOWN, "if settled_at <= self._read_at and self._clock() < held.end:", "if True:"
    ),
    "what was read long ago counts as read now": Patch(RUN, "return now < reading.began + _FRESH", "return True"),
    "a change leads from any version to the next one": Patch(
        KNOWN,
        "changes.get(self.number + 1) and self._adopt(changes[self.number + 1])",
        "changes and self._adopt(changes.popitem()[1])",
    ),
    "a version may be replaced": Patch(REGISTER, _COMMIT, _OVERWRITE),
    "a version is read only once": Patch(
        REGISTER, "if last > self._newest.number:", "if last and not self._newest.number:"
    ),
}

UNSEEN = {
    "workers start in a phase that has ended",
    "a node that moved to another switch keeps its seat",
    "a newcomer displaces a node of a dissolved group",
    "an effect of another failure may be the root cause",
    "failures are in the order of the nodes' clocks",
    "a round waits for all workers that are starting",
    "a round does not wait for starting workers that it needs",
    "workers without a place end no round",
    "a change of size ends a round after a final success",
    "a node with a final success is waited for",
    "a node that leaves after its success counts as lost",
    "the report of a newer incarnation is ignored",
    "standbys are not recorded",
    "names determine the order before switches",
    "nodes of different jobs are ordered by their order within the job",
    "n10 comes before n2",
    "a lost node whose lease has not expired is expected",
    "a smaller node displaces a member from its seat",
    "a newcomer does not get the nearest seat",
    "newcomers precede the members at their switch",
    "newcomers follow all members",
    "nodes of a switch are separated",
    "the incarnation that was a member is preferred",
    "a loss takes precedence over a departure",
    "there is no last call",
    "a newcomer interrupts a round that succeeds",
    "a loss does not end the grace period",
    "an expired lease does not end the grace period",
    "a node that leaves after its workers stopped ends the grace period",
    "a leaving node is a member of the next round",
    "a drained node is a member of the next round",
    "the later of two warnings determines the grace period",
}
"""Mutants that violate no property that the referee checks: a run only takes longer, counts a departure as a loss, or
has ranks that match the switches less. The tables must find them."""
