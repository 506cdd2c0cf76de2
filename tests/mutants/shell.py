"""Possible faults of the code around the protocol. Each is one edit of the source."""

from tests.protocol.under_test import (
    CHANNEL,
    CHECKPOINT_FILES,
    DECIDE,
    ELASTIC,
    FENCE,
    FILES,
    GUARD,
    HISTORY,
    IDLE_WORKERS,
    KEYVALUE,
    LEADERS,
    LEASE_DURATION,
    LEASE_KEEPER,
    LEASE_NAMES,
    LEASES,
    LIVENESS,
    LOADING,
    NODE,
    OBSERVED_LEASES,
    POLLING,
    PROBES,
    PUBLICATIONS,
    PUBLISH,
    RECOVERY,
    REGISTER,
    RENDEZVOUS,
    REQUEUE,
    RETENTION,
    ROUNDS,
    SIGNAL_RESOLUTION,
    SUSPICION,
    TRANSFER,
    TURNS,
    WORKERS,
    Patch,
)

_JUDGED = "return LinkResult.CREATED if held == draft.data else LinkResult.NAME_TAKEN"
_COMMIT = """            if newest.number != version:
                self._known.adopt(newest)
                return newest.number > version  # another node was faster: decide anew
            won = self._register.commit(version, encode(state))"""
_PUBLISHED = "            result = files.link_draft(draft)\n"
_LISTED = "names = files.names(self.directory)"
_POLLED = """paths = map(self._path, range(1, self._newest.number + 2))
        names = [path.name for path in paths if files.read(path) is not None]"""
_IN_PLACE = """            won = files.publish_new(path, b'') and not files.publish(path, data)
            result = files.LinkResult.CREATED if won else files.LinkResult.NAME_TAKEN
"""
_EXPIRY = "backend.observer(settings.expiry, clock)"
_PARK_FIRST = "return machine._park(state.reason)"
_ADD = "self._change(key, lambda old: str(parse_number(key, old) + amount))"

MUTANTS = {
    # files
    "a lost reply counts as a lost race": Patch(FILES, _JUDGED, "return LinkResult.NAME_TAKEN"),
    "a name of another writer counts as our own": Patch(FILES, _JUDGED, "return LinkResult.CREATED"),
    "a short write counts as complete": Patch(
        FILES, "            while view:\n                view", "            if view:\n                view"
    ),
    "drafts are not made durable": Patch(FILES, "            if durable:\n                os.fsync(fd)\n", ""),
    # register
    "a version is published before it is complete": Patch(REGISTER, _PUBLISHED, _IN_PLACE),
    "versions are polled by name": Patch(REGISTER, _LISTED, _POLLED),
    "a stale listing replaces a newer one": Patch(
        REGISTER,
        "if last > self._newest.number:",
        "if last and last != self._newest.number:",
    ),
    "drafts are not removed with versions": Patch(HISTORY, "            self._remove_drafts(last)\n", ""),
    "versions are removed as soon as they are superseded": Patch(
        HISTORY, "return observations[0][1] if now - observations[0][0] >= SETTLE_DELAY else 0", "return newest"
    ),
    # rendezvous
    "a commit does not compare versions": Patch(
        RENDEZVOUS, _COMMIT, "            won = self._register.commit(newest.number, encode(state))"
    ),
    "the margin is zero": Patch(
        OBSERVED_LEASES, _EXPIRY, "backend.observer(type(settings.expiry)(settings.expiry.longest, 0.0), clock)"
    ),
    "a lease begins at the end of its renewal": Patch(
        LEASE_KEEPER,
        "self._hold(now, now + duration)\n        self.duration",
        "self._hold(self._clock(), self._clock() + duration)\n        self.duration",
    ),
    "a shorter lease is published before the guard knows it": Patch(
        LEASE_KEEPER, "if not first and now + duration < self.held.end:", "if False:"
    ),
    "a longer lease holds before it is published": Patch(
        LEASE_KEEPER, "if not first and now + duration < self.held.end:", "if not first:"
    ),
    "a renewal that another node makes due is late": Patch(
        LEASE_KEEPER,
        "max(self.held.start + self.duration.interval, self._changed_at)",
        "self.held.start + self.duration.interval",
    ),
    "a node that is no longer alone keeps a long lease": Patch(
        RENDEZVOUS, "self._lease.set_alone(nodes == 1)", "self._lease.set_alone(self._known.number >= 0)"
    ),
    "a node that others have declared dead keeps its lease": Patch(
        RENDEZVOUS, "            self._lease.duration.declared_dead()\n", "            pass\n"
    ),
    "observers ignore the duration of a lease": Patch(LEASES, "lambda name: name.duration", "lambda name: 6.0"),
    "a missing lease has the duration that was last seen": Patch(
        LIVENESS, "None if age.missing_listings else age.duration", "age.duration"
    ),
    # notifications
    "a refused connection is believed although the lease is renewed": Patch(
        SUSPICION, "version is None or version != suspect.version or node", "version is None or node"
    ),
    "a refused connection is believed before the lease could be renewed": Patch(
        SUSPICION, "max(self.turn, self.since + _STANDSTILL)", "self.turn"
    ),
    "a refusing neighbour is looked at again only after other news": Patch(
        RENDEZVOUS, "self._schedule.pause, self._suspicions.pause)", "self._schedule.pause)"
    ),
    "a node that is no member of the round is suspected": Patch(
        SUSPICION, "        if node not in self._known.state.ranks:\n            return\n", ""
    ),
    "all neighbours of a lost node look at once": Patch(
        SUSPICION,
        "return self.turn if self.since == inf else max(self.turn, self.since + _STANDSTILL)",
        "return 0.0 if self.since == inf else self.since + _STANDSTILL",
    ),
    "a lease that is not shown proves a death": Patch(SUSPICION, "version is None or version", "version"),
    "the leaders learn of a loss after the leases are read": Patch(
        RENDEZVOUS, "            self._notify_leaders()  # they know", "            pass  # they know"
    ),
    "the leaders are notified of each report of a loss": Patch(
        PUBLICATIONS, " if not before or node not in before.dead)", ")"
    ),
    "a node reports what another one has reported": Patch(
        SUSPICION, "return self._leases.view().dead", "return frozenset()"
    ),
    "a node looks again at once at what another one has reported": Patch(
        SUSPICION,
        "in reported:\n                self._defer(node)",
        "in reported:\n                pass",
    ),
    "a report of an old round ends the newest one": Patch(
        PUBLICATIONS, "any(node in state.ranks for node in now.dead if", "any(True for node in now.dead if"
    ),
    "all neighbours of a lost node look although one has reported it": Patch(
        SUSPICION, "turn=max(suspect.turn, later)", "turn=suspect.turn"
    ),
    "a node that one neighbour has reported is never looked at again": Patch(
        SUSPICION, "if not suspect.deferred and (suspect.place", "if (suspect.place"
    ),
    "the first neighbour of another lost node looks late": Patch(
        SUSPICION, "(suspect.place or node == state.lost)", "True"
    ),
    "all neighbours of another lost node look while a round forms": Patch(
        SUSPICION, "(suspect.place or node == state.lost)", "node == state.lost"
    ),
    "a node looks again at a neighbour that it has reported": Patch(
        SUSPICION, "refused=node not in self._gone", "refused=True"
    ),
    "a probe does not hasten a look": Patch(RENDEZVOUS, "                    self._suspicions.probed()\n", ""),
    "each notification of a known version is a probe": Patch(
        RENDEZVOUS, " and not newer and not change:", " and not newer:"
    ),
    "only a node whose renewal is missing is probed": Patch(PROBES, "few = len(busy) <= _FEW", "few = False"),
    "neighbours are probed while all nodes stop their workers": Patch(PROBES, "few = len(busy) <= _FEW and", "few ="),
    "neighbours in a small round are probed": Patch(PROBES, " and is_large(len(state.participants))", ""),
    "a leader probes without a pause": Patch(PROBES, "dict.fromkeys(due, now + self._interval)", "{}"),
    "all leaders probe at once": Patch(PROBES, "first = now + _LEADER_DELAY * rank", "first = now"),
    "a leader polls for the reports of neighbours": Patch(
        PROBES, "if new or not unproved.keys().isdisjoint(due):", "if due:"
    ),
    "the neighbours of a node that is about to stop are probed": Patch(PROBES, "first + _ANSWER_TIME)", "first)"),
    "a node of an older round counts as slow": Patch(
        PROBES, "        self._due = {node:", "        self._due |= {node:"
    ),
    "suspicions of nodes that are lost stay for ever": Patch(
        SUSPICION,
        "{node: suspect for node, suspect in self._suspects.items() if node in near}",
        "self._suspects",
    ),
    "a node that was declared dead never counts as alive again": Patch(
        SUSPICION, "        self._gone = {node: proof for node, proof in self._gone.items() if node in members}\n", ""
    ),
    "no node is notified of a version": Patch(
        RENDEZVOUS, "self._notifier.notify([*found.values(), *others]", "self._notifier.notify([]"
    ),
    "leaders are not notified of a publication": Patch(
        RENDEZVOUS, "SUCCEEDED:\n            self._leaders_notified = False\n", "SUCCEEDED:\n"
    ),
    "a node with a lost link does not renew its lease": Patch(
        RENDEZVOUS, "        self._lease.requested = True\n        self._suspicions", "        self._suspicions"
    ),
    "the leases are not read early after a neighbour became silent": Patch(
        SUSPICION, "elif not alone and looked_at <", "elif False and looked_at <"
    ),
    "the leases are not read if that of a silent neighbour was last seen long ago": Patch(
        SUSPICION, "            if looked_at < since:\n", "            if False:\n"
    ),
    "each report of a silence is another one": Patch(
        SUSPICION, "self._silent.setdefault(node, (now, due))", "self._silent[node] = (now, due)"
    ),
    "a node that hears no neighbour looks at each expiry": Patch(SUSPICION, "elif not alone and", "elif"),
    "a failure that cannot be read counts as the last one": Patch(
        DECIDE,
        "        failures = _failures(state, view)\n        saved",
        "        failures = _failures(state, view) or state.failures\n        saved",
    ),
    "a node that the end of its round has drained is a member of the next round": Patch(
        DECIDE, "if state.drained != before.drained or state.retired != before.retired:", "if False:"
    ),
    "drained incarnations are never forgotten": Patch(
        DECIDE, "for node in state.retired if node in view.nodes", "for node in state.retired"
    ),
    "drained incarnations that may return are forgotten": Patch(
        DECIDE, "for node in state.retired if node in view.nodes", "for node in state.retired if node in nodes_there"
    ),
    "a node that is no leader reads the leases before it starts its workers": Patch(
        RENDEZVOUS,
        "if own is None:\n            return False\n        starts",
        "if own is None or self._leader_rank() is None:\n            return False\n        starts",
    ),
    "the turns of nodes that wait are long past when a round ends": Patch(
        TURNS, "if self._phase != (state.phase, state.round):", "if False:"
    ),
    "many nodes with the same order look at once": Patch(
        LEADERS, "if _is_alone(member.job_nodes, nodes) else", "if False else"
    ),
    "a link that is made again stays suspect": Patch(SUSPICION, "        self._suspects.pop(node, None)\n", ""),
    "a silent node stays so after it is no neighbour any more": Patch(
        SUSPICION, "self._silent.items() if node in near}", "self._silent.items() if node in members}"
    ),
    "a listing that fails when a link breaks ends the turn": Patch(
        SUSPICION, "with contextlib.suppress(StoreError):  #", "with contextlib.nullcontext():  #"
    ),
    "a small job that continues a large run waits for dead leaders": Patch(
        LEADERS, "if ready and is_large(nodes) else", "if ready and is_large(own.job_nodes) else"
    ),
    "many nodes of small jobs that continue a small run wait for dead leaders": Patch(
        OBSERVED_LEASES, "max(self._count, len(self._known", "max(len(self._known"
    ),
    "members of small jobs do not stand in": Patch(
        LEADERS,
        "own.node_state is NodeState.READY\n    return _turn",
        "own.node_state is NodeState.READY and own.node not in state.ranks\n    return _turn",
    ),
    "a turn jumps with the number of nodes": Patch(
        LEADERS, "int(share(member.node) * nodes) if", "int(share(member.node) * 2**32) % nodes if"
    ),
    "two nodes that know another number of nodes wait for each other": Patch(
        LEADERS, "share(node) if alone else order, node", "int(share(node) * nodes) if alone else order, node"
    ),
    "two nodes of which one is in a large job wait for each other": Patch(
        LEADERS, "return alone, share(node) if alone", "return False, share(node) * nodes if alone"
    ),
    "the turns of nodes are evenly apart": Patch(
        LEADERS, "max(_TURN_INTERVAL * log2((place + 1) / COUNT), place / _MAX_TURN_RATE)", "place * _TURN_INTERVAL"
    ),
    "very many nodes look in a second": Patch(LEADERS, ", place / _MAX_TURN_RATE)", ", 0.0)"),
    "a node that has left leads": Patch(LEADERS, " and not _has_left(view, p.node))", ")"),
    "nodes that are not ready lead": Patch(LEADERS, "if m.node_state is NodeState.READY and m.round", "if m.round"),
    "of many nodes others lead than those that look first": Patch(
        LEADERS, "key=lambda m: precedence(m.node, m.order, m.job_nodes, nodes)", "key=lambda m: (m.order, m.node)"
    ),
    "others are known to lead than those that look first": Patch(
        LEASE_NAMES, 'precedence(text.partition("~")[0], int(order), int(job_nodes), len(texts))', "int(order)"
    ),
    "a node waits for its next poll before its turn begins": Patch(
        RENDEZVOUS, "            self._schedule.read_at_turn(self._turns.until_reading(()))", "            pass"
    ),
    "a node reads at its turn although a round has formed": Patch(
        POLLING, "self._turn = self._clock() + seconds", "self._turn = min(self._turn, self._clock() + seconds)"
    ),
    "a node whose turn has come reads for ever": Patch(
        TURNS, "if turn < inf and not any(", "if turn < inf and (True or "
    ),
    "a renewal that a node sees at its first look proves that a leader lives": Patch(
        TURNS, ">= self._looks[1]", ">= self._looks[0]"
    ),
    "no node outside a round watches its members": Patch(
        TURNS, "if watches(state, own, self._leases.size):", "if False:"
    ),
    "a few nodes outside a large round do not watch its members": Patch(
        LEADERS, "else nodes - len(state.participants)", "else nodes"
    ),
    "all nodes outside a round watch its members": Patch(
        LEADERS, "share(own.node) * max(1, outside) < _WATCHERS", "True"
    ),
    "no node watches the leaders while a round forms": Patch(
        LEADERS, "is_large(nodes) and share(own.node)", "False and share(own.node)"
    ),
    "a few nodes outside a round that has ended do not watch its members": Patch(
        LEADERS, "share(own.node) * (outside or nodes)", "share(own.node) * nodes"
    ),
    "a node whose turn has come reads until it sees that a leader is dead": Patch(
        TURNS, "            if len(self._looks) > 1:", "            if False:"
    ),
    "a renewal from before a long pause proves that a leader lives": Patch(
        TURNS, "[looked_at], True", "[looked_at], False"
    ),
    "members of a round look again after a long pause": Patch(
        TURNS, "again = self._looks_again and own.node_state is NodeState.READY", "again = self._looks_again"
    ),
    "a silent neighbour is not observed": Patch(
        RENDEZVOUS, "                self._suspicions.became_silent(node)\n", "                pass\n"
    ),
    "the leaders of a large round are neighbours": Patch(
        LEADERS, "    if not is_large(count):\n        return list(islice", "    if True:\n        return list(islice"
    ),
    "a third without a live member has a leader": Patch(
        LEADERS, "range(start, min(start + size, count))", "range(start, count)"
    ),
    "no node stands in for the first nodes of a large job": Patch(
        LEADERS, "_turn(_place(own, nodes)) if", "(0.0 if own.order < COUNT else inf) if"
    ),
    "a node stands in only if it polls by chance": Patch(TURNS, "if turn < inf and not any", "if False and not any"),
    "a node that stands in looks once": Patch(
        TURNS, "due = max(turn, last + duration / 4)", "due = turn if looked_at < self._since else inf"
    ),
    "a false report of a death is never withdrawn": Patch(
        SUSPICION, "if versions.get(node, proof.version) == proof.version:", "if True:"
    ),
    "the own lease is renewed after a look at that of a neighbour": Patch(
        RENDEZVOUS, "self._lease.until_renewal(early=False) <= 0\n        if late:", "False\n        if late:"
    ),
    "only the first of several losses makes the lease longer": Patch(
        RENDEZVOUS, "ended > self._lost_in:", "self._lost_in < 0:"
    ),
    "a change is used although others may not have seen the lease at the last reading": Patch(
        RENDEZVOUS,
        "self._known.read(self._lease.held, self._lease.settled_at)",
        "self._known.read(self._lease.held, self._lease.regained_at)",
    ),
    "a dead node is a leader": Patch(LEADERS, "p.node not in view.dead and p", "p"),
    "the node whose loss has ended the round is a leader": Patch(LEADERS, " and p.node != state.just_lost", ""),
    "a node that was lost before the round is no leader": Patch(LEADERS, "state.just_lost", "state.lost"),
    "all leaders read the leases as a round ends": Patch(
        RENDEZVOUS, "self._leader_rank() == 0 or", "self._leader_rank() is not None or"
    ),
    "another leader polls without reading the leases": Patch(
        POLLING, "min(self._notified, due), min(self._next_read, due)", "min(self._notified, due), self._next_read"
    ),
    "other leaders do not wait for the requests of many nodes": Patch(
        POLLING, "max(_LEADER_DELAY, nodes * _LEADER_DELAY_PER_NODE)", "_LEADER_DELAY"
    ),
    "a slow register delays the next poll of a leader": Patch(
        RENDEZVOUS, "started = self._leases.looked_at if self._leases.looked_at >= began", "started = began if began"
    ),
    "a third without a live member has no leader": Patch(LEADERS, "if len(found) < COUNT:", "if not found:"),
    "a ready member leads twice": Patch(LEADERS, " if member.node not in there]", "]"),
    "other leaders read when a round ends if that was due": Patch(
        POLLING, "read or (ended and result.rank != 0)", "read or (ended and result.rank is None)"
    ),
    "nodes that are no leaders read when a round ends if that was due": Patch(
        POLLING, "read or (ended and result.rank != 0)", "read or (ended and bool(result.rank))"
    ),
    "the leaders of an older state lead": Patch(OBSERVED_LEASES, "if led is not state or ", "if "),
    "the leaders of an older reading lead": Patch(OBSERVED_LEASES, " or seen is not view:", ":"),
    "a lease that a listing misses delays a round": Patch(
        OBSERVED_LEASES, "complete=state.phase is Phase.JOINING", "complete=False"
    ),
    "a lease that a listing misses is looked for at any time": Patch(
        OBSERVED_LEASES, "complete=state.phase is Phase.JOINING", "complete=True"
    ),
    "a lease that a listing misses is not looked for": Patch(
        LEASES, "if complete and self._listed.keys() - listed.keys():", "if False:"
    ),
    "the leases of the first listing are forgotten": Patch(LEASES, ".difference(texts), found=listed)", ")"),
    "all nodes renew their leases together": Patch(LEASE_DURATION, "/ RENEWALS * self._part", "/ RENEWALS"),
    "all nodes have the same interval": Patch(RENDEZVOUS, ", held_until, part_of_interval(node))", ", held_until)"),
    "all nodes have the same schedule": Patch(
        RENDEZVOUS, "PollSchedule(times, clock, node)", "PollSchedule(times, clock)"
    ),
    "all nodes poll together": Patch(POLLING, "2 * self.lease * self._part", "2 * self.lease"),
    "very many nodes poll as often as others": Patch(
        POLLING, "max(2 * self.lease * self._part, self._shared_poll_interval(result))", "2 * self.lease * self._part"
    ),
    "all nodes without a network poll together": Patch(POLLING, "_MAX_POLL_RATE * self._part", "_MAX_POLL_RATE"),
    "the first leader waits as long as it has read": Patch(POLLING, "result.rank == 0 and took", "False and took"),
    "the first leader reads a slow filesystem without a pause": Patch(POLLING, "and took < self._poll:", ":"),
    "a leader waits as long as a filesystem has stopped": Patch(
        POLLING, "min(now - started, _MAX_BACK_OFF) if read", "now - started if read"
    ),
    "all leaders read without a pause": Patch(POLLING, "result.rank == 0 and took", "took"),
    "a notified node does not poll": Patch(POLLING, "if newer or result is None:", "if result is None:"),
    "all nodes poll at every publication": Patch(
        POLLING, "max(now, self._polled + self._shared_read_interval(result))", "now"
    ),
    "nodes that are no leaders read the leases all at once": Patch(
        POLLING, "return interval + until_moment(self._node, now + interval, shared)", "return shared"
    ),
    "polls delay the reading of leases": Patch(POLLING, 'float("inf") if done else self._next_read', 'float("inf")'),
    "the node that ends a round leaves the decision to the leaders": Patch(
        RENDEZVOUS, " or self._ends_the_round(state)", ""
    ),
    "no node is notified of the first publication": Patch(
        RENDEZVOUS,
        "which we know nothing yet\n            self._leaders_notified = False\n",
        "which we know nothing yet\n",
    ),
    "a node without network relies on notifications": Patch(POLLING, " or not result.network_healthy:", ":"),
    # leases
    "the duration of a listing counts for the age of a lease": Patch(
        LIVENESS,
        "        age = self._ages.get(node)\n        if",
        "        before, age = after, self._ages.get(node)\n        if",
    ),
    "a lease that is listed again stays missing": Patch(
        LIVENESS, "if age.alive and not age.missing_listings", "if age.alive"
    ),
    "a lease is dated before it was read": Patch(
        LIVENESS,
        "age.version, age.since, age.missing_listings = version, after, 0",
        "after = before\n            age.version, age.since, age.missing_listings = version, after, 0",
    ),
    "a renewal during a long sleep proves life": Patch(
        LIVENESS, "proved = before - self._last_listing_end <= limit", "proved = self._last_listing_end >= 0"
    ),
    "a node that a listing misses ages as if it were listed": Patch(
        LIVENESS, "return self.missing_since if self.missing_listings else self.since", "return self.since"
    ),
    "a node that two listings miss is dead": Patch(LIVENESS, " and not missing_by_chance", ""),
    "a lost node that is a member again is judged by its old lease": Patch(
        OBSERVED_LEASES, "        if state.round > self._round:\n", "        if False:\n"
    ),
    "a lost node that is in the next round is judged by its old lease": Patch(
        OBSERVED_LEASES, "state.just_lost", "state.lost"
    ),
    "a node that is taken into a round is judged by its old lease": Patch(
        LIVENESS, "if age is not None and not age.alive:", "if False:"
    ),
    "a living node that is taken into a round ages anew": Patch(
        LIVENESS, "if age is not None and not age.alive:", "if age is not None:"
    ),
    "a node that is taken into a round is as old as its lease": Patch(
        LIVENESS,
        "age.alive, age.since, age.missing_listings = True, now, 0",
        "age.alive, age.missing_listings = True, 0",
    ),
    "a node that is a member again is alive in every look": Patch(
        OBSERVED_LEASES, "            self._round = state.round\n", ""
    ),
    "a dead node is forgotten although its lease may be shown": Patch(
        LIVENESS, " and before - ages[node].since > _FORGOTTEN_AFTER", ""
    ),
    "a member of the round is forgotten": Patch(LIVENESS, "gone.difference(expected)", "gone"),
    "a node that may be alive is forgotten": Patch(LIVENESS, "if not ages[node].alive and before", "if before"),
    "a node that a listing misses is removed": Patch(
        LIVENESS, "{*listed, *expected, *self._missing(gone)}", "{*listed, *expected}"
    ),
    "an older name proves life": Patch(LEASE_NAMES, "return self > other if self.revision >= 0 else", "return"),
    "every name of a node's lease counts": Patch(
        LEASE_NAMES, "if name is not other and name > other:", "if name is not other:"
    ),
    "a heartbeat whose reply was lost is repeated": Patch(LEASES, "if not self._is_listed(name):", "if True:"),
    "two publications have the same revision": Patch(
        LEASES,
        "        self._revision += 1  #",
        "        self._revision += self._published is not None or not self._revision  #",
    ),
    "a failure is published without its report": Patch(
        LEASES, "if not new and content.read_failures <= _MAX_READ_FAILURES:", "if False:"
    ),
    # guard
    "the guard ignores the lease": Patch(GUARD, "if boottime() >= self._deadline:", "if False:"),
    "a renewal that comes too late is accepted": Patch(
        GUARD, "        self.check()\n        if message ==", "        if message =="
    ),
    "an expired lease counts as valid after a renewal": Patch(
        GUARD, "if self._expired_at >= float(arguments[-1]):", "if False:"
    ),
    "the guard does not report that it has killed the workers": Patch(
        GUARD, '        _send("killed")', '        _send("")'
    ),
    # node state machine
    "workers start after an old observation": Patch(NODE, "now < lease.end:", "True:"),
    "workers start after the lease expired while others were parked": Patch(
        NODE,
        _PARK_FIRST,
        f"{_PARK_FIRST}.then(lambda machine: machine.observe(state, lease, now, settled=settled, polls=polls))",
    ),
    "workers start although others may continue without the node": Patch(NODE, "and settled and", "and"),
    "workers start again in their round": Patch(
        NODE, "state.round > self.member.round", "state.round >= self.member.round"
    ),
    "a node is ready before its workers are parked": Patch(
        NODE, _PARK_FIRST, "return machine._ready(state.round).then(lambda machine: machine._park(state.reason))"
    ),
    "a node that holds asks for a place": Patch(NODE, "if self.holds or (", "if ("),
    "a changed offer of workers is not published": Patch(
        NODE,
        "return Transition(machine, (Publish(),) if published and",
        "return Transition(machine, () if published and",
    ),
    "workers are not parked for a new round": Patch(
        NODE, "if self.part is not None and not (in_round and state.round == self.part.round):", "if False:"
    ),
    "a node does not publish that it was fenced": Patch(
        NODE,
        "            return self._publish(self.member.node_state, self.member.round, fenced=self.member.round)\n"
        "        round = self.part.round",
        "            return self._publish(self.member.node_state, self.member.round)\n        round = self.part.round",
    ),
    "a fenced node does not ask for the next round": Patch(
        NODE, ".then(lambda machine: machine._ready(round, fenced=round))", ""
    ),
    "a node leaves beside its parked workers": Patch(
        NODE, "return machine._stop(notice.reason)", "return Transition(machine)"
    ),
    "the workers of a node that leaves are parked": Patch(
        NODE, "        if self.leaving:\n            return self._stop(reason)\n", ""
    ),
    "workers that park on request outlive a node that leaves": Patch(
        NODE,
        'return machine._stop("the node leaves") if self.leaving else machine._ready(round)',
        "return Transition(machine) if self.leaving else machine._ready(round)",
    ),
    "parked workers outlive the run": Patch(NODE, "if self.part is None and not self.parked:", "if self.part is None:"),
    "a node that succeeded in a round that is ending starts workers again": Patch(
        NODE, "if published == (NodeState.SUCCEEDED, state.round) and state.grace:", "if False:"
    ),
    "a departure overwrites a success": Patch(
        NODE,
        "if self.member.node_state is NodeState.SUCCEEDED:\n            return Transition(self)\n",
        "if False:\n            pass\n",
    ),
    "a node leaves without a departure": Patch(
        NODE, "return self._publish(NodeState.LEFT, self.member.round)", "return Transition(self)"
    ),
    "a worker's failure is not published": Patch(
        NODE,
        "published = self._publish(NodeState.FAILED, failure.round, failure=failure, fenced=fenced)",
        "published = Transition(self)",
    ),
    "workers that stopped on request count as succeeded": Patch(
        NODE,
        'return machine._stop("the node leaves") if self.leaving else machine._ready(round)',
        "return self.workers_succeeded()",
    ),
    "the later of two deadlines counts": Patch(
        NODE,
        "if deadline >= self.stop_deadline and save == self.stop_saves:",
        "if deadline < self.stop_deadline and save == self.stop_saves:",
    ),
    "workers that were requested to stop for a newcomer do not save for a departure": Patch(
        NODE, "if deadline >= self.stop_deadline and save == self.stop_saves:", "if deadline >= self.stop_deadline:"
    ),
    "a node that leaves asks for the next round": Patch(
        NODE,
        "if self.part is not None or self.leaving or self.member.final:",
        "if self.part is not None or self.member.final:",
    ),
    "a node does not publish that it must leave": Patch(
        NODE,
        "published = machine._publish(self.member.node_state, self.member.round, leaving=notice)",
        "published = Transition(machine)",
    ),
    "the node waits for workers that do not poll": Patch(NODE, "if deadline > now and polls:", "if True:"),
    # requeue
    "another agent's claim is judged again": Patch(REQUEUE, "None if _claimed(agent) else refusal", "refusal"),
    "the claim of a dead agent never times out": Patch(
        REQUEUE, "if not agent.end_signals and not _request_file_exists(agent):", "if False:"
    ),
    "all claims are equal": Patch(REQUEUE, "by_limit, agent.member.node)", "by_limit)"),
    "a repeated warning ends the wait for the end": Patch(
        REQUEUE, "    agent.end_signals.clear()  # they were warnings\n", ""
    ),
    "an element requeues its array": Patch(
        REQUEUE, "job = agent.task.name\n    info = ", "job = agent.task.job_id\n    info = "
    ),
    # agent
    "a failed query is never finished": Patch(
        SIGNAL_RESOLUTION,
        "            notice = None\n        self._deliver",
        "            return\n        self._deliver",
    ),
    "the first agent uses the answers of others": Patch(
        SIGNAL_RESOLUTION, " or not self._batch_system.query_delay", ""
    ),
    "a SIGTERM during a query is ignored": Patch(
        SIGNAL_RESOLUTION,
        "if self.signum is None or (signum in STOP_SIGNALS and self.signum not in STOP_SIGNALS):",
        "if self.signum is None:",
    ),
    # key-value store
    "a sum is computed before the compare-and-set": Patch(
        KEYVALUE, _ADD, "self._change(key, lambda old, seen=self.get(key): str(parse_number(key, seen) + amount))"
    ),
    # workers that stay
    "the token of a parked worker is not revoked": Patch(ROUNDS, "        revoke_token(keep=self._listener)\n", ""),
    "a worker is resumed before the guard watches it": Patch(
        WORKERS,
        "        self._let_guard_watch(pid)\n        before, environ",
        "        before, environ",
    ),
    "a state that is not whole counts as whole": Patch(
        ELASTIC, "self._held, self._begun = None, True", "self._begun = True"
    ),
    "a newcomer does not receive the state of the optimizer": Patch(
        ELASTIC,
        "self._parts[name].load_state_dict(state)",
        'name == "optimizer" or self._parts[name].load_state_dict(state)',
    ),
    "a checkpoint is complete with its first file": Patch(
        CHECKPOINT_FILES, "if files.issuperset(name.files())", "if name in files"
    ),
    "the worst checkpoint is kept": Patch(
        RETENTION, 'sign = -1 if self.mode == "max"', 'sign = -1 if self.mode == "min"'
    ),
    "the position in the data is not loaded": Patch(LOADING, '= saved["samples"], saved', "= self.samples, saved"),
    "the oldest state is chosen": Patch(RECOVERY, "newest = max(", "newest = min("),
    "an optimizer's step is interrupted": Patch(ROUNDS, "            self.hold()\n", "            self.release()\n"),
    "all workers that may be at fault are replaced at once": Patch(
        IDLE_WORKERS, "if worker.rank % 2 == round % 2 and not", "if not"
    ),
    "a worker that completes steps may be at fault": Patch(
        IDLE_WORKERS, " and not page.marks(worker.local_rank).has_step(round)", ""
    ),
    # transfers
    "a frame that is not authentic is used": Patch(TRANSFER, "if not hmac.compare_digest(received, ", "if not bool("),
    "frames may change places": Patch(TRANSFER, "_NUMBER.pack(number) + head", "_NUMBER.pack(0) + head"),
    "both directions have the same key": Patch(TRANSFER, 'derive(key, "responder")', 'derive(key, "initiator")'),
    "a link becomes a transfer": Patch(
        CHANNEL, "starts = not self.is_initiator and not self._received", "starts = not self.is_initiator"
    ),
    # publications of workers
    "a claim excludes no round": Patch(FENCE, "                _exclude(path)\n", "                pass\n"),
    "a claim does not exclude a round with drafts": Patch(FENCE, "        _remove_drafts(path)\n", "        return\n"),
    "drafts are in the published directory": Patch(
        PUBLISH, "directory = path.parent if fence is None else fence.drafts(path.parent)", "directory = path.parent"
    ),
}

PROFILE_OF = {
    "a round has a group that is not whole": "groups",
    "a newcomer that completes no group ends the round": "groups",
    "a round follows a final success": "agents of torch",
    "a node leaves beside its parked workers": "parked workers",
    "the workers of a node that leaves are parked": "parked workers",
    "workers that park on request outlive a node that leaves": "parked workers",
    "parked workers outlive the run": "parked workers",
    "workers that stopped on request count as succeeded": "parked workers",
    "a node whose workers are all starting is a member": "early workers",
    "a failure is not charged while another worker is starting in its place": "early workers",
    "fewer workers than places end a round": "early workers",
    "a node whose heartbeat was not seen is a member of the next round": "long waits",
    "every lease counts as proof of life": "long waits",
    "two incarnations of a node are members of a round": "long waits",
    "reopening removes the members": "users",
    "leases are not read while a round runs": "losses",
    "a lost reply counts as a lost race": "counters",
    "the margin is zero": "late renewals",
    "a shorter lease is published before the guard knows it": "changing leases",
    "a longer lease holds before it is published": "changing leases",
    "observers ignore the duration of a lease": "changing leases",
    "nodes of a group are anywhere": "groups under one switch",
    "a group gets a node from another switch": "groups under one switch",
    "a whole group is dissolved for one that is not": "groups under one switch",
    "newcomers that make no group are members": "groups under one switch",
    "a claim excludes no round": "publishers",
    "a claim does not exclude a round with drafts": "publishers",
    "drafts are in the published directory": "publishers",
}
"""The profile in which the simulator finds a mutant soonest, for mutants that take long."""

LATE = {
    "a lost reply counts as a lost race",
    "a claim excludes no round",
    "drafts are in the published directory",
}
"""Mutants that the simulator finds only after many histories."""

_IDLE = "tests/agent/test_idle_workers.py"
_TRANSFER = "tests/network/test_transfer.py"
_KEEPER = "tests/rendezvous/test_lease_keeper.py"

BY_TESTS = {
    "all workers that may be at fault are replaced at once": _IDLE,
    "a worker that completes steps may be at fault": _IDLE,
    "a frame that is not authentic is used": _TRANSFER,
    "frames may change places": _TRANSFER,
    "both directions have the same key": _TRANSFER,
    "a link becomes a transfer": "tests/network/test_channel.py",
    "a lease begins at the end of its renewal": "tests/rendezvous/test_rendezvous.py",
    "a shorter lease is published before the guard knows it": _KEEPER,
    "a renewal that another node makes due is late": _KEEPER,
    "a node that is no longer alone keeps a long lease": "tests/rendezvous/test_rendezvous.py",
    "a missing lease has the duration that was last seen": "tests/protocol/test_liveness.py",
    "a change is used although the lease has expired since the last reading": "tests/rendezvous/test_known.py",
    "what was read long ago counts as read now": "tests/rendezvous/test_known.py",
    "a stale listing replaces a newer one": "tests/storage/test_register.py",
    "a node that others have declared dead keeps its lease": "tests/rendezvous/test_rendezvous.py",
    "a change waits for the next renewal": "tests/rendezvous/test_rendezvous.py::test_changes_are_published_at_once",
    "a refused connection is believed although the lease is renewed": "tests/rendezvous/test_notifications.py",
    "a refused connection is believed before the lease could be renewed": "tests/rendezvous/test_notifications.py",
    "all neighbours of a lost node look at once": "tests/rendezvous/test_notifications.py",
    "all neighbours of a lost node look although one has reported it": "tests/rendezvous/test_notifications.py",
    "all neighbours of another lost node look while a round forms": "tests/rendezvous/test_notifications.py",
    "a node that one neighbour has reported is never looked at again": "tests/rendezvous/test_notifications.py",
    "the first neighbour of another lost node looks late": "tests/rendezvous/test_notifications.py",
    "a node looks again at a neighbour that it has reported": "tests/rendezvous/test_notifications.py",
    "a refusing neighbour is looked at again only after other news": "tests/rendezvous/test_notifications.py",
    "a lease that is not shown proves a death": "tests/rendezvous/test_notifications.py",
    "the leaders learn of a loss after the leases are read": "tests/rendezvous/test_notifications.py",
    "the leaders are notified of each report of a loss": "tests/protocol/test_publications.py",
    "a node that is no member of the round is suspected": "tests/rendezvous/test_notifications.py",
    "a node reports what another one has reported": "tests/rendezvous/test_notifications.py",
    "a node looks again at once at what another one has reported": "tests/rendezvous/test_notifications.py",
    "a report of an old round ends the newest one": "tests/protocol/test_publications.py",
    "a probe does not hasten a look": "tests/rendezvous/test_notifications.py",
    "each notification of a known version is a probe": "tests/rendezvous/test_notifications.py",
    "only a node whose renewal is missing is probed": "tests/rendezvous/test_probes.py",
    "neighbours are probed while all nodes stop their workers": "tests/rendezvous/test_probes.py",
    "neighbours in a small round are probed": "tests/rendezvous/test_probes.py",
    "a leader probes without a pause": "tests/rendezvous/test_probes.py",
    "all leaders probe at once": "tests/rendezvous/test_probes.py",
    "a leader polls for the reports of neighbours": "tests/rendezvous/test_probes.py",
    "the neighbours of a node that is about to stop are probed": "tests/rendezvous/test_probes.py",
    "a node of an older round counts as slow": "tests/rendezvous/test_probes.py",
    "suspicions of nodes that are lost stay for ever": "tests/rendezvous/test_notifications.py",
    "a slow register delays the next poll of a leader": "tests/rendezvous/test_notifications.py",
    "a third without a live member has no leader": "tests/protocol/test_leaders.py",
    "a ready member leads twice": "tests/protocol/test_leaders.py",
    "other leaders read when a round ends if that was due": "tests/protocol/test_polling.py",
    "nodes that are no leaders read when a round ends if that was due": "tests/protocol/test_polling.py",
    "the leaders of an older state lead": "tests/rendezvous/test_observed_leases.py",
    "the leaders of an older reading lead": "tests/rendezvous/test_observed_leases.py",
    "a lease that a listing misses delays a round": "tests/rendezvous/test_rendezvous.py",
    "a lease that a listing misses is looked for at any time": "tests/rendezvous/test_rendezvous.py",
    "a lease that a listing misses is not looked for": "tests/storage/test_leases.py",
    "the leases of the first listing are forgotten": "tests/storage/test_leases.py",
    "all nodes renew their leases together": "tests/protocol/test_lease_duration.py",
    "all nodes have the same interval": "tests/rendezvous/test_rendezvous.py",
    "all nodes have the same schedule": "tests/rendezvous/test_rendezvous.py",
    "all nodes poll together": "tests/protocol/test_polling.py",
    "very many nodes poll as often as others": "tests/protocol/test_polling.py",
    "all nodes without a network poll together": "tests/protocol/test_polling.py",
    "the first leader waits as long as it has read": "tests/protocol/test_polling.py",
    "the first leader reads a slow filesystem without a pause": "tests/protocol/test_polling.py",
    "all leaders read without a pause": "tests/protocol/test_polling.py",
    "a leader waits as long as a filesystem has stopped": "tests/protocol/test_polling.py",
    "a node that was declared dead never counts as alive again": "tests/rendezvous/test_notifications.py",
    "no node is notified of a version": "tests/rendezvous/test_notifications.py",
    "leaders are not notified of a publication": "tests/rendezvous/test_notifications.py",
    "a node with a lost link does not renew its lease": "tests/rendezvous/test_notifications.py",
    "the leases are not read early after a neighbour became silent": "tests/rendezvous/test_notifications.py",
    "a silent neighbour is not observed": "tests/rendezvous/test_notifications.py",
    "the leases are not read if that of a silent neighbour was last seen long ago": (
        "tests/rendezvous/test_notifications.py"
    ),
    "each report of a silence is another one": "tests/rendezvous/test_notifications.py",
    "a node that hears no neighbour looks at each expiry": "tests/rendezvous/test_notifications.py",
    "a failure that cannot be read counts as the last one": "tests/protocol/test_decide.py",
    "a node that the end of its round has drained is a member of the next round": "tests/protocol/test_decide.py",
    "drained incarnations are never forgotten": "tests/protocol/test_decide.py",
    "drained incarnations that may return are forgotten": "tests/protocol/test_decide.py",
    "a node that is no leader reads the leases before it starts its workers": "tests/rendezvous/test_notifications.py",
    "the turns of nodes that wait are long past when a round ends": "tests/rendezvous/test_turns.py",
    "many nodes with the same order look at once": "tests/protocol/test_leaders.py",
    "a link that is made again stays suspect": "tests/rendezvous/test_notifications.py",
    "a silent node stays so after it is no neighbour any more": "tests/rendezvous/test_notifications.py",
    "a listing that fails when a link breaks ends the turn": "tests/rendezvous/test_notifications.py",
    "a small job that continues a large run waits for dead leaders": "tests/protocol/test_leaders.py",
    "many nodes of small jobs that continue a small run wait for dead leaders": "tests/rendezvous/test_turns.py",
    "members of small jobs do not stand in": "tests/protocol/test_leaders.py",
    "a turn jumps with the number of nodes": "tests/protocol/test_leaders.py",
    "two nodes that know another number of nodes wait for each other": "tests/protocol/test_leaders.py",
    "two nodes of which one is in a large job wait for each other": "tests/protocol/test_leaders.py",
    "nodes that are no leaders read the leases all at once": "tests/protocol/test_polling.py",
    "a renewal from before a long pause proves that a leader lives": "tests/rendezvous/test_turns.py",
    "members of a round look again after a long pause": "tests/rendezvous/test_turns.py",
    "the turns of nodes are evenly apart": "tests/protocol/test_leaders.py",
    "very many nodes look in a second": "tests/protocol/test_leaders.py",
    "a node that has left leads": "tests/protocol/test_leaders.py",
    "nodes that are not ready lead": "tests/protocol/test_leaders.py",
    "of many nodes others lead than those that look first": "tests/protocol/test_leaders.py",
    "others are known to lead than those that look first": "tests/storage/test_lease_names.py",
    "a node waits for its next poll before its turn begins": "tests/rendezvous/test_turns.py",
    "a node reads at its turn although a round has formed": "tests/rendezvous/test_turns.py",
    "a node whose turn has come reads for ever": "tests/rendezvous/test_turns.py",
    "a renewal that a node sees at its first look proves that a leader lives": "tests/rendezvous/test_turns.py",
    "a few nodes outside a large round do not watch its members": "tests/protocol/test_leaders.py",
    "a few nodes outside a round that has ended do not watch its members": "tests/rendezvous/test_turns.py",
    "a node whose turn has come reads until it sees that a leader is dead": "tests/rendezvous/test_turns.py",
    "no node watches the leaders while a round forms": "tests/protocol/test_leaders.py",
    "no node outside a round watches its members": "tests/rendezvous/test_turns.py",
    "all nodes outside a round watch its members": "tests/protocol/test_leaders.py",
    "a node that stands in looks once": "tests/rendezvous/test_turns.py",
    "the leaders of a large round are neighbours": "tests/protocol/test_leaders.py",
    "a third without a live member has a leader": "tests/protocol/test_leaders.py",
    "no node stands in for the first nodes of a large job": "tests/protocol/test_leaders.py",
    "a node stands in only if it polls by chance": "tests/rendezvous/test_turns.py",
    "a false report of a death is never withdrawn": "tests/rendezvous/test_notifications.py",
    "the own lease is renewed after a look at that of a neighbour": "tests/rendezvous/test_notifications.py",
    "only the first of several losses makes the lease longer": "tests/rendezvous/test_rendezvous.py",
    "a change is used although others may not have seen the lease at the last reading": (
        "tests/rendezvous/test_rendezvous.py"
    ),
    "a dead node is a leader": "tests/protocol/test_leaders.py",
    "a notified node does not poll": "tests/protocol/test_polling.py",
    "a node that was lost before the round is no leader": "tests/protocol/test_leaders.py",
    "the node whose loss has ended the round is a leader": "tests/protocol/test_leaders.py",
    "all leaders read the leases as a round ends": "tests/rendezvous/test_notifications.py",
    "another leader polls without reading the leases": "tests/protocol/test_polling.py",
    "other leaders do not wait for the requests of many nodes": "tests/protocol/test_polling.py",
    "all nodes poll at every publication": "tests/protocol/test_polling.py",
    "polls delay the reading of leases": "tests/protocol/test_polling.py",
    "the node that ends a round leaves the decision to the leaders": "tests/rendezvous/test_notifications.py",
    "no node is notified of the first publication": "tests/rendezvous/test_notifications.py",
    "a node without network relies on notifications": "tests/protocol/test_polling.py",
    "the duration of a listing counts for the age of a lease": "tests/storage/test_leases.py",
    "a lease is dated before it was read": "tests/storage/test_leases.py",
    "a renewal during a long sleep proves life": "tests/storage/test_leases.py",
    "a node that a listing misses ages as if it were listed": "tests/storage/test_leases.py",
    "a lease that is listed again stays missing": "tests/protocol/test_liveness.py",
    "a lost node that is a member again is judged by its old lease": "tests/rendezvous/test_rendezvous.py",
    "a lost node that is in the next round is judged by its old lease": "tests/rendezvous/test_rendezvous.py",
    "a node that is a member again is alive in every look": "tests/rendezvous/test_rendezvous.py",
    "a node that is taken into a round is judged by its old lease": "tests/protocol/test_liveness.py",
    "a living node that is taken into a round ages anew": "tests/protocol/test_liveness.py",
    "a node that is taken into a round is as old as its lease": "tests/protocol/test_liveness.py",
    "a dead node is forgotten although its lease may be shown": "tests/protocol/test_liveness.py",
    "a member of the round is forgotten": "tests/protocol/test_liveness.py",
    "a node that may be alive is forgotten": "tests/protocol/test_liveness.py",
    "a node that a listing misses is removed": "tests/storage/test_leases.py",
    "a node that two listings miss is dead": "tests/storage/test_leases.py",
    "an older name proves life": "tests/storage/test_leases.py",
    "every name of a node's lease counts": "tests/storage/test_lease_names.py",
    "a heartbeat whose reply was lost is repeated": "tests/storage/test_leases.py",
    "two publications have the same revision": "tests/storage/test_leases.py",
    "a failure is published without its report": "tests/storage/test_leases.py",
    "drafts are not removed with versions": "tests/storage/test_history.py",
    "versions are removed as soon as they are superseded": "tests/storage/test_history.py",
    "a renewal that comes too late is accepted": "tests/agent/test_guard_main.py",
    "an expired lease counts as valid after a renewal": "tests/agent/test_guard_main.py",
    "another agent's claim is judged again": "tests/slurm/test_requeue.py",
    "the claim of a dead agent never times out": "tests/slurm/test_requeue.py",
    "all claims are equal": "tests/slurm/test_requeue.py",
    "a repeated warning ends the wait for the end": "tests/slurm/test_requeue.py",
    "an element requeues its array": "tests/slurm/test_requeue.py",
    "the token of a parked worker is not revoked": (
        "tests/e2e/test_resumed_workers.py::test_what_is_left_of_an_old_round_cannot_publish"
    ),
    "a worker is resumed before the guard watches it": "tests/agent/test_parking.py",
    "a state that is not whole counts as whole": "tests/training/test_elastic.py",
    "a newcomer does not receive the state of the optimizer": (
        "tests/training/test_world_changes.py::test_no_change_of_the_world_changes_the_result"
    ),
    "a checkpoint is complete with its first file": "tests/agent/test_snapshot_writer.py",
    "the worst checkpoint is kept": "tests/training/test_retention.py",
    "the position in the data is not loaded": "tests/training/test_loading.py",
    "the oldest state is chosen": "tests/training/test_recovery.py",
    "an optimizer's step is interrupted": (
        "tests/e2e/test_resumed_workers.py::test_an_optimizer_step_is_not_interrupted"
    ),
    "a failed query is never finished": "tests/agent/test_signals.py",
    "the first agent uses the answers of others": "tests/agent/test_signals.py",
    "a SIGTERM during a query is ignored": "tests/agent/test_signals.py",
}
"""The tests of a module that find a mutant which neither tables nor the simulator find."""

UNSEEN = {
    *BY_TESTS,
    "a node that holds asks for a place",
    "a changed offer of workers is not published",
    "workers start after an old observation",
    "workers start after the lease expired while others were parked",
    "workers start although others may continue without the node",
    "a node does not publish that it was fenced",
    "a node leaves without a departure",
    "the later of two deadlines counts",
    "workers that were requested to stop for a newcomer do not save for a departure",
    "a node that leaves asks for the next round",
    "a node that succeeded in a round that is ending starts workers again",
    "a node does not publish that it must leave",
    "the node waits for workers that do not poll",
}
"""Mutants that the simulator does not find: the guard compensates for them, a run only takes longer, or the necessary
situation is too rare."""
