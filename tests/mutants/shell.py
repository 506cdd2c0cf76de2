"""Faults that somebody might put into the code around the protocol some day: each one edit of the source."""

from tests.protocol.under_test import (
    ATTENTION,
    FENCE,
    FILES,
    GUARD,
    HISTORY,
    KEYVALUE,
    LEADERS,
    LEASE_KEEPER,
    LEASE_NAMES,
    LEASES,
    LIVENESS,
    NODE,
    PUBLISH,
    REGISTER,
    RENDEZVOUS,
    REQUEUE,
    SIGNAL_RESOLUTION,
    SUSPICION,
    Patch,
)

_JUDGED = "return LinkResult.CREATED if held == draft.data else LinkResult.NAME_TAKEN"
_COMMIT = """            if newest.number != version.number:
                return True  # another node was faster: decide anew
            won = self._register.commit(version.number, encode(state))"""
_PUBLISHED = "return files.publish_new(self._path(after + 1), files.to_json(document))"
_LISTED = "names = files.names(self.directory)"
_POLLED = """paths = map(self._path, range(1, self._newest.number + 2))
        names = [path.name for path in paths if files.read(path) is not None]"""
_IN_PLACE = """path = self._path(after + 1)
        return files.publish_new(path, b'') and not files.publish(path, files.to_json(document))"""
_EXPIRY = "self._backend.observer(times.lease + times.margin, clock)"
_STOP_FIRST = "return machine._stop(state.reason)"
_ADD = "self.update(key, lambda old: str(_parse_number(key, old) + amount))"

MUTANTS = {
    # files
    "a lost reply is taken for a loss": Patch(FILES, _JUDGED, "return LinkResult.NAME_TAKEN"),
    "a name that is taken counts as our own": Patch(FILES, _JUDGED, "return LinkResult.CREATED"),
    "a short write is taken for a whole one": Patch(
        FILES, "            while view:\n                view", "            if view:\n                view"
    ),
    "drafts are not made durable": Patch(FILES, "            if durable:\n                os.fsync(fd)\n", ""),
    # register
    "a version is published before it is complete": Patch(REGISTER, _PUBLISHED, _IN_PLACE),
    "versions are polled by name": Patch(REGISTER, _LISTED, _POLLED),
    "a stale listing is trusted": Patch(
        REGISTER,
        "if last > self._newest.number:",
        "if last and last != self._newest.number:",
    ),
    "the sweep is left out where versions are removed": Patch(HISTORY, "            self._remove_drafts(last)\n", ""),
    "who removes versions does not let them settle": Patch(
        HISTORY, "return observations[0][1] if now - observations[0][0] >= SETTLE_DELAY else 0", "return newest"
    ),
    # rendezvous
    "nothing is compared": Patch(
        RENDEZVOUS, _COMMIT, "            won = self._register.commit(newest.number, encode(state))"
    ),
    "there is no margin": Patch(RENDEZVOUS, _EXPIRY, "self._backend.observer(times.lease, clock)"),
    "a lease runs from the end of its renewal": Patch(
        LEASE_KEEPER,
        "self.published, self.renewed_at, self.requested = member, now, False",
        "self.published, self.renewed_at, self.requested = member, self._clock(), False",
    ),
    # notifications
    "a refusal is believed though the lease moves": Patch(
        SUSPICION, "if self._observer.lease_version(node) != before:", "if False:"
    ),
    "a refusal is believed before the lease can move": Patch(SUSPICION, "self._clock() - since >= _STANDSTILL", "True"),
    "a node that was declared gone stays gone": Patch(SUSPICION, "        self.gone &= set(members)\n", ""),
    "no node is notified of a version": Patch(
        RENDEZVOUS, "self._notifier.notify([*members.values(), *self._others(set(members))]", "self._notifier.notify([]"
    ),
    "leaders are not notified of a publication": Patch(RENDEZVOUS, "            self._leaders_notified = False\n", ""),
    "a node with a lost link does not renew its lease": Patch(
        RENDEZVOUS, "        self._lease.requested = True\n        self._suspicions", "        self._suspicions"
    ),
    "a silent neighbour's end is found by chance": Patch(
        SUSPICION, "(left := self._observer.expires(node) - now) > 0", "(left := 1.0) < 0"
    ),
    "a silent neighbour is not watched": Patch(RENDEZVOUS, "                self._suspicions.silent.add(node)\n", ""),
    "a dead node leads": Patch(LEADERS, " if p.node not in view.dead)", ")"),
    "a notified node waits": Patch(ATTENTION, "if newer or result is None:", "if result is None:"),
    "all nodes poll at every publication": Patch(
        ATTENTION, "max(now, self._polled + self._shared_read_interval(result))", "now"
    ),
    "polls postpone the reading": Patch(ATTENTION, 'float("inf") if read else self._next_read', 'float("inf")'),
    "the node that ends a round leaves the decision to the leaders": Patch(
        RENDEZVOUS, " or self._ends_the_round(state)", ""
    ),
    "no node is notified of the first publication": Patch(
        RENDEZVOUS,
        "            self._leaders_notified = False  # our first publication, in a run of which we know nothing yet\n",
        "",
    ),
    "a node without network relies on notifications": Patch(ATTENTION, " or not result.network_healthy:", ":"),
    # leases
    "a lease ages while it is read": Patch(LIVENESS, "expired = before - ", "expired = after - "),
    "a lease is known from before it was read": Patch(
        LIVENESS,
        "age.version, age.since, age.missing_listings = version, after, 0",
        "age.version, age.since, age.missing_listings = version, before, 0",
    ),
    "what moved during a long sleep proves life": Patch(
        LIVENESS, "proved = before - self._last_listing_end <= self._expiry", "proved = self._last_listing_end >= 0"
    ),
    "who is missed by a listing ages as if it were shown": Patch(
        LIVENESS, "return self.missing_since if self.missing_listings else self.since", "return self.since"
    ),
    "who is missed twice is dead": Patch(LIVENESS, " and not missing_by_chance", ""),
    "who is missed by a listing is forgotten": Patch(
        LIVENESS, "{*listed, *expected, *self._missing(listed)}", "{*listed, *expected}"
    ),
    "an older name proves life": Patch(LEASE_NAMES, "return self > other if self.revision >= 0 else", "return"),
    "any name of a node counts": Patch(LEASE_NAMES, "if name is not other and name > other:", "if name is not other:"),
    "a heartbeat whose reply was lost is repeated": Patch(LEASES, "if not self._is_listed(name):", "if True:"),
    "two publications have the same revision": Patch(
        LEASES,
        "        self._revision += 1  #",
        "        self._revision += self._published is not None or not self._revision  #",
    ),
    "a failure is told without its report": Patch(
        LEASES, "if not new and content.read_failures <= _MAX_READ_FAILURES:", "if False:"
    ),
    # guard
    "the guard ignores the lease": Patch(GUARD, "if boottime() >= self._deadline:", "if False:"),
    "a renewal that comes too late is accepted": Patch(
        GUARD, "        self.check()\n        if message ==", "        if message =="
    ),
    "a lapse is forgotten": Patch(GUARD, "if self._expired_at >= float(arguments[-1]):", "if False:"),
    "the guard tells nobody": Patch(GUARD, '        _send("killed")', '        _send("")'),
    # node state machine
    "workers start on old news": Patch(NODE, "now < lease_from + self.lease:", "True:"),
    "workers start though the lease ran out while others were stopped": Patch(
        NODE,
        _STOP_FIRST,
        f"{_STOP_FIRST}.then(lambda machine: machine.observe(state, lease_from, now, settled=settled, polls=polls))",
    ),
    "workers start though others may be going on": Patch(NODE, "and settled and", "and"),
    "workers start again in their round": Patch(
        NODE, "part.round > self.member.round", "part.round >= self.member.round"
    ),
    "a node is ready before its workers are stopped": Patch(
        NODE, _STOP_FIRST, "return machine._ready(state.round).then(lambda machine: machine._stop(state.reason))"
    ),
    "workers are not stopped for a new round": Patch(
        NODE, "if self.part is not None and (part is None or part.round != self.part.round):", "if False:"
    ),
    "a fence is not told": Patch(
        NODE,
        "            return self._publish(self.member.node_state, self.member.round, fenced=self.member.round)\n"
        "        round = self.part.round",
        "            return self._publish(self.member.node_state, self.member.round)\n        round = self.part.round",
    ),
    "who is fenced does not ask for the next round": Patch(
        NODE, ".then(lambda machine: machine._ready(round, fenced=round))", ""
    ),
    "who succeeds in a round that is to end begins anew": Patch(
        NODE, "if published == (NodeState.SUCCEEDED, state.round) and state.grace:", "if False:"
    ),
    "a departure overwrites a success": Patch(
        NODE,
        "if self.member.node_state is NodeState.SUCCEEDED:\n            return Transition(self)\n",
        "if False:\n            pass\n",
    ),
    "who leaves says nothing": Patch(
        NODE, "return self._publish(NodeState.LEFT, self.member.round)", "return Transition(self)"
    ),
    "a worker's failure is kept quiet": Patch(
        NODE,
        "published = self._publish(NodeState.FAILED, failure.round, failure=failure, fenced=fenced)",
        "published = Transition(self)",
    ),
    "workers that were asked to stop have succeeded": Patch(NODE, "        if not early:\n", "        if True:\n"),
    "of two deadlines the later counts": Patch(
        NODE,
        "if self.stop_deadline is not None and deadline >= self.stop_deadline:",
        "if self.stop_deadline is not None and deadline < self.stop_deadline:",
    ),
    "who leaves takes part again": Patch(
        NODE,
        "if self.part is not None or self.leaving or self.member.final:",
        "if self.part is not None or self.member.final:",
    ),
    "who leaves does not say so": Patch(
        NODE,
        "published = machine._publish(self.member.node_state, self.member.round, leaving=notice)",
        "published = Transition(machine)",
    ),
    "workers that ignore the request are waited for": Patch(NODE, "if seconds > 0 and polls:", "if True:"),
    # requeue
    "another agent's claim is judged again": Patch(REQUEUE, "None if _claimed(agent) else refusal", "refusal"),
    "the claim of a dead agent never times out": Patch(
        REQUEUE, "if not agent.end_signals and not _request_file_exists(agent):", "if False:"
    ),
    "claims are all alike": Patch(REQUEUE, "by_limit, agent.member.node)", "by_limit)"),
    "a warning that is repeated ends the wait for the end": Patch(
        REQUEUE, "    agent.end_signals.clear()  # they were warnings\n", ""
    ),
    "an element requeues its array": Patch(
        REQUEUE, "job = agent.task.name\n    info = ", "job = agent.task.job_id\n    info = "
    ),
    # agent
    "a question that fails is never forgotten": Patch(
        SIGNAL_RESOLUTION,
        "            notice = None\n        self._deliver",
        "            return\n        self._deliver",
    ),
    "who is first believes the others": Patch(SIGNAL_RESOLUTION, " or not self._batch_system.query_delay", ""),
    "a SIGTERM is not heard while a question is open": Patch(
        SIGNAL_RESOLUTION,
        "if self.signum is None or (signum in STOP_SIGNALS and self.signum not in STOP_SIGNALS):",
        "if self.signum is None:",
    ),
    # key-value store
    "a sum is made before it is compared": Patch(
        KEYVALUE, _ADD, "self.update(key, lambda old, seen=self.get(key): str(_parse_number(key, seen) + amount))"
    ),
    # publications of workers
    "no round is shut out": Patch(FENCE, "                _exclude(path)\n", "                pass\n"),
    "a round that has drafts is not shut out": Patch(FENCE, "        _remove_drafts(path)\n", "        return\n"),
    "drafts lie where they are published": Patch(
        PUBLISH, "directory = path.parent if fence is None else fence.drafts(path.parent)", "directory = path.parent"
    ),
}

PROFILE_OF = {
    "a round follows a success that is final": "agents of torch",
    "a node that may be long dead is taken in": "long waits",
    "any lease proves life": "long waits",
    "both twins are taken in": "long waits",
    "reopen forgets the members": "users",
    "leases are not read while a round runs": "losses",
    "a lost reply is taken for a loss": "counters",
    "there is no margin": "late renewals",
    "no round is shut out": "publishers",
    "a round that has drafts is not shut out": "publishers",
    "drafts lie where they are published": "publishers",
}
"""The profile in which the simulator finds a fault soonest, for faults that take long."""

BY_TESTS = {
    "a lease runs from the end of its renewal": "tests/rendezvous/test_rendezvous.py",
    "news wait for the next renewal": "tests/rendezvous/test_rendezvous.py::test_news_are_published_at_once",
    "a refusal is believed though the lease moves": "tests/rendezvous/test_notifications.py",
    "a refusal is believed before the lease can move": "tests/rendezvous/test_notifications.py",
    "a node that was declared gone stays gone": "tests/rendezvous/test_notifications.py",
    "no node is notified of a version": "tests/rendezvous/test_notifications.py",
    "leaders are not notified of a publication": "tests/rendezvous/test_notifications.py",
    "a node with a lost link does not renew its lease": "tests/rendezvous/test_notifications.py",
    "a silent neighbour's end is found by chance": "tests/rendezvous/test_notifications.py",
    "a silent neighbour is not watched": "tests/rendezvous/test_notifications.py",
    "a dead node leads": "tests/protocol/test_leaders.py",
    "a notified node waits": "tests/protocol/test_polling.py",
    "all nodes poll at every publication": "tests/protocol/test_polling.py",
    "polls postpone the reading": "tests/protocol/test_polling.py",
    "the node that ends a round leaves the decision to the leaders": "tests/rendezvous/test_notifications.py",
    "no node is notified of the first publication": "tests/rendezvous/test_notifications.py",
    "a node without network relies on notifications": "tests/protocol/test_polling.py",
    "a lease ages while it is read": "tests/storage/test_leases.py",
    "a lease is known from before it was read": "tests/storage/test_leases.py",
    "what moved during a long sleep proves life": "tests/storage/test_leases.py",
    "who is missed by a listing ages as if it were shown": "tests/storage/test_leases.py",
    "who is missed by a listing is forgotten": "tests/storage/test_leases.py",
    "who is missed twice is dead": "tests/storage/test_leases.py",
    "an older name proves life": "tests/storage/test_leases.py",
    "any name of a node counts": "tests/storage/test_lease_names.py",
    "a heartbeat whose reply was lost is repeated": "tests/storage/test_leases.py",
    "two publications have the same revision": "tests/storage/test_leases.py",
    "a failure is told without its report": "tests/storage/test_leases.py",
    "the sweep is left out where versions are removed": "tests/storage/test_history.py",
    "who removes versions does not let them settle": "tests/storage/test_history.py",
    "a renewal that comes too late is accepted": "tests/agent/test_guard_main.py",
    "a lapse is forgotten": "tests/agent/test_guard_main.py",
    "another agent's claim is judged again": "tests/slurm/test_requeue.py",
    "the claim of a dead agent never times out": "tests/slurm/test_requeue.py",
    "claims are all alike": "tests/slurm/test_requeue.py",
    "a warning that is repeated ends the wait for the end": "tests/slurm/test_requeue.py",
    "an element requeues its array": "tests/slurm/test_requeue.py",
    "a question that fails is never forgotten": "tests/agent/test_signals.py",
    "who is first believes the others": "tests/agent/test_signals.py",
    "a SIGTERM is not heard while a question is open": "tests/agent/test_signals.py",
}
"""The tests of a module, for what neither tables nor the simulator see."""

UNSEEN = {
    *BY_TESTS,
    "workers start on old news",
    "workers start though the lease ran out while others were stopped",
    "workers start though others may be going on",
    "a fence is not told",
    "who leaves says nothing",
    "workers that were asked to stop have succeeded",
    "of two deadlines the later counts",
    "who leaves takes part again",
    "who succeeds in a round that is to end begins anew",
    "who leaves does not say so",
    "workers that ignore the request are waited for",
}
"""Those that the simulator does not see: the guard makes up for them, or a run only takes longer, or the moment is too
rare."""
