"""Faults that somebody might put into the code around the protocol some day: each one edit of the source."""

from tests.protocol.under_test import (
    ATTENTION,
    CONDUCT,
    FENCE,
    FILES,
    GUARD,
    HISTORY,
    KEYVALUE,
    LEADERS,
    LEASE_NAMES,
    LEASES,
    PUBLISH,
    REGISTER,
    RENDEZVOUS,
    SUCCESSOR,
    WARNED,
    Patch,
)

_JUDGED = "return Claim.WON if held == draft.data else Claim.LOST"
_COMMIT = """            if newest.number != version.number:
                return True  # somebody was faster: decide anew
            won = self._register.commit(version.number, encode(state))"""
_PUBLISHED = "return files.publish_new(self._path(after + 1), files.to_json(document))"
_LISTED = "names = files.names(self.directory)"
_POLLED = """paths = map(self._path, range(1, self._newest.number + 2))
        names = [path.name for path in paths if files.read(path) is not None]"""
_IN_PLACE = """path = self._path(after + 1)
        return files.publish_new(path, b'') and not files.publish(path, files.to_json(document))"""
_EXPIRY = "expiry = settings.rendezvous.lease + settings.rendezvous.margin"
_STOP_FIRST = """            else:
                yield from self._stop(state.reason)
        if self.part is not None or self.leaving:
            return"""
_ADD = "self.update(key, lambda old: str(_number(key, old) + amount))"

MUTANTS = {
    # files
    "a lost reply is taken for a loss": Patch(FILES, _JUDGED, "return Claim.LOST"),
    "a name that is taken counts as our own": Patch(FILES, _JUDGED, "return Claim.WON"),
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
    "the sweep is left out where versions are removed": Patch(HISTORY, "            self._sweep(last)\n", ""),
    "who removes versions does not let them settle": Patch(
        HISTORY, "return sights[0][1] if now - sights[0][0] >= SETTLE else 0", "return newest"
    ),
    # rendezvous
    "nothing is compared": Patch(
        RENDEZVOUS, _COMMIT, "            won = self._register.commit(newest.number, encode(state))"
    ),
    "there is no margin": Patch(RENDEZVOUS, _EXPIRY, "expiry = settings.rendezvous.lease"),
    "a lease runs from the end of its renewal": Patch(
        RENDEZVOUS,
        "self._said, self._lease_from, self._asked = member, now, False",
        "self._said, self._lease_from, self._asked = member, self._clock(), False",
    ),
    # doorbell
    "a refusal is believed though the lease moves": Patch(
        RENDEZVOUS, "if self._observer.mark(node) != before:", "if False:"
    ),
    "a refusal is believed before the lease can move": Patch(RENDEZVOUS, "self._clock() - since >= _STILL", "True"),
    "who was called gone stays so": Patch(RENDEZVOUS, "        self._gone &= inside\n", ""),
    "nobody is told of a version": Patch(
        RENDEZVOUS, "self._bell.ring([*everybody.values(), *self._others(set(everybody))]", "self._bell.ring([]"
    ),
    "leaders are not told of a word": Patch(RENDEZVOUS, "            self._untold = True\n", ""),
    "who is shaken does not show that it lives": Patch(
        RENDEZVOUS, "        self._asked = True\n        self._observer", "        self._observer"
    ),
    "a silent neighbour's end is found by chance": Patch(
        RENDEZVOUS, "            if left > 0:", "            if False:"
    ),
    "a silent neighbour is not watched": Patch(RENDEZVOUS, "        self._silent.add(node)\n", ""),
    "a dead node leads": Patch(LEADERS, " if p.node not in view.dead)", ")"),
    "who is told of a version waits": Patch(ATTENTION, "if newer or moment is None:", "if moment is None:"),
    "all look whenever somebody has something to say": Patch(
        ATTENTION, "max(now, self._looked + self._crowded(moment))", "now"
    ),
    "looks put the reading off": Patch(ATTENTION, 'float("inf") if read else self._reading', 'float("inf")'),
    "who ends a round leaves it to the leaders": Patch(RENDEZVOUS, " or self._ends_the_round(state)", ""),
    "the first word reaches nobody": Patch(
        RENDEZVOUS, "            self._untold = True  # our first word, in a run of which we know nothing yet\n", ""
    ),
    "a node that can hear nobody trusts the doorbell": Patch(ATTENTION, " or not moment.calm:", ":"),
    # leases
    "a lease ages while it is read": Patch(LEASES, "expired = before - ", "expired = self._clock() - "),
    "a lease is known from before it was read": Patch(
        LEASES,
        "watched.since, watched.misses = name, after, 0",
        "watched.since, watched.misses = name, before, 0",
    ),
    "what moved during a long sleep proves life": Patch(
        LEASES, "proved = before - self._last <= self._expiry", "proved = self._last >= 0"
    ),
    "who is missed by a listing ages as if it were shown": Patch(
        LEASES, "return self.missed if self.misses else self.since", "return self.since"
    ),
    "who is missed twice is dead": Patch(LEASES, " and watched.misses not in range(1, _MISSES)", ""),
    "who is missed by a listing is forgotten": Patch(
        LEASES, "{*listed, *expected, *self._missed(listed)}", "{*listed, *expected}"
    ),
    "an older name is a sign of life": Patch(LEASE_NAMES, "return self > other if self.word >= 0 else", "return"),
    "any name of a node counts": Patch(LEASE_NAMES, "if name is not other and name > other:", "if name is not other:"),
    "a beat whose reply was lost is made anew": Patch(LEASES, "if not self._listed(name):", "if True:"),
    "a word is said twice under its number": Patch(
        LEASES, "        self._word += 1  #", "        self._word += self._said is not None or not self._word  #"
    ),
    "a failure is told without its report": Patch(LEASES, "if not new and watched.unread <= _LOOKS:", "if False:"),
    # guard
    "the guard ignores the lease": Patch(GUARD, "if boottime() >= self._until:", "if False:"),
    "a renewal that comes too late is accepted": Patch(
        GUARD, "        self.check()\n        if word ==", "        if word =="
    ),
    "a lapse is forgotten": Patch(GUARD, "if self._lapsed >= float(arguments[-1]):", "if False:"),
    "the guard tells nobody": Patch(GUARD, '        _tell("killed")', '        _tell("")'),
    # conduct
    "workers start on old news": Patch(CONDUCT, "self._holds(lease_from):", "True:"),
    "workers start though others may be going on": Patch(CONDUCT, "and settled and", "and"),
    "workers start again in their round": Patch(
        CONDUCT, "part.round > self.member.round", "part.round >= self.member.round"
    ),
    "a node is ready before its workers are stopped": Patch(
        CONDUCT,
        _STOP_FIRST,
        _STOP_FIRST.replace("else:\n", "else:\n                yield from self._ready(state.round)\n"),
    ),
    "workers are not stopped for a new round": Patch(
        CONDUCT, "if self.part is not None and (part is None or part.round != self.part.round):", "if False:"
    ),
    "a fence is not told": Patch(
        CONDUCT,
        "yield self._say(self.member.stand, self.member.round, fenced=self.member.round)",
        "yield self._say(self.member.stand, self.member.round)",
    ),
    "who is fenced does not ask for the next round": Patch(
        CONDUCT, "            yield from self._ready(round, fenced=round)\n", ""
    ),
    "who succeeds in a round that is to end begins anew": Patch(
        CONDUCT, "if stands == (Stand.SUCCEEDED, state.round) and state.grace:", "if False:"
    ),
    "a goodbye takes a success back": Patch(CONDUCT, "if self.member.stand is not Stand.SUCCEEDED:", "if True:"),
    "who leaves says nothing": Patch(CONDUCT, "yield self._say(Stand.LEFT, self.member.round)", "yield from ()"),
    "a worker's failure is kept quiet": Patch(
        CONDUCT, "        yield self._say(Stand.FAILED, failure.round, failure=failure, fenced=fenced)\n", ""
    ),
    "workers that were asked to stop have succeeded": Patch(CONDUCT, "        if not early:\n", "        if True:\n"),
    "of two deadlines the later counts": Patch(
        CONDUCT,
        "if self._asked is not None and until >= self._asked:",
        "if self._asked is not None and until < self._asked:",
    ),
    "who leaves takes part again": Patch(
        CONDUCT, "if self.part is not None or self.leaving:", "if self.part is not None:"
    ),
    "who leaves does not say so": Patch(
        CONDUCT, "            yield self._say(self.member.stand, self.member.round, leaving=notice)\n", ""
    ),
    "workers that do not heed it are waited for": Patch(
        CONDUCT, "if seconds > 0 and (yield Ask(reason, seconds)):", "if (yield Ask(reason, seconds)) or True:"
    ),
    # successor
    "a mate's claim is judged again": Patch(SUCCESSOR, "None if _claimed(left) else refusal", "refusal"),
    "who dies with its claim is never doubted": Patch(
        SUCCESSOR, "if not left.ended and not _wished(left):", "if False:"
    ),
    "claims are all alike": Patch(SUCCESSOR, "by_limit, left.member.node)", "by_limit)"),
    "a warning that is repeated ends the wait for the end": Patch(
        SUCCESSOR, "    left.ended.clear()  # those were warnings\n", ""
    ),
    "an element requeues its array": Patch(
        SUCCESSOR, "job = left.task.name\n    info = ", "job = left.task.job_id\n    info = "
    ),
    # agent
    "a question that fails is never forgotten": Patch(
        WARNED, "            notice = None\n        self._deliver", "            return\n        self._deliver"
    ),
    "who is first believes the others": Patch(WARNED, " or not self._surroundings.turn", ""),
    "a SIGTERM is not heard while a question is open": Patch(
        WARNED,
        "if self.signum is None or (signum in STOP and self.signum not in STOP):",
        "if self.signum is None:",
    ),
    # key-value store
    "a sum is made before it is compared": Patch(
        KEYVALUE, _ADD, "self.update(key, lambda old, seen=self.get(key): str(_number(key, seen) + amount))"
    ),
    # publications of workers
    "no round is shut out": Patch(FENCE, "                _shut(path)\n", "                pass\n"),
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
"""Where the simulator finds a fault soonest, for those that take long."""

BY_TESTS = {
    "a lease runs from the end of its renewal": "tests/rendezvous/test_rendezvous.py",
    "news wait for the next renewal": "tests/rendezvous/test_rendezvous.py::test_news_are_published_at_once",
    "a refusal is believed though the lease moves": "tests/rendezvous/test_doorbell.py",
    "a refusal is believed before the lease can move": "tests/rendezvous/test_doorbell.py",
    "who was called gone stays so": "tests/rendezvous/test_doorbell.py",
    "nobody is told of a version": "tests/rendezvous/test_doorbell.py",
    "leaders are not told of a word": "tests/rendezvous/test_doorbell.py",
    "who is shaken does not show that it lives": "tests/rendezvous/test_doorbell.py",
    "a silent neighbour's end is found by chance": "tests/rendezvous/test_doorbell.py",
    "a silent neighbour is not watched": "tests/rendezvous/test_doorbell.py",
    "a dead node leads": "tests/protocol/test_leaders.py",
    "who is told of a version waits": "tests/rendezvous/test_attention.py",
    "all look whenever somebody has something to say": "tests/rendezvous/test_attention.py",
    "looks put the reading off": "tests/rendezvous/test_attention.py",
    "who ends a round leaves it to the leaders": "tests/rendezvous/test_doorbell.py",
    "the first word reaches nobody": "tests/rendezvous/test_doorbell.py",
    "a node that can hear nobody trusts the doorbell": "tests/rendezvous/test_attention.py",
    "a lease ages while it is read": "tests/store/test_leases.py",
    "a lease is known from before it was read": "tests/store/test_leases.py",
    "what moved during a long sleep proves life": "tests/store/test_leases.py",
    "who is missed by a listing ages as if it were shown": "tests/store/test_leases.py",
    "who is missed by a listing is forgotten": "tests/store/test_leases.py",
    "who is missed twice is dead": "tests/store/test_leases.py",
    "an older name is a sign of life": "tests/store/test_leases.py",
    "any name of a node counts": "tests/store/test_lease_names.py",
    "a beat whose reply was lost is made anew": "tests/store/test_leases.py",
    "a word is said twice under its number": "tests/store/test_leases.py",
    "a failure is told without its report": "tests/store/test_leases.py",
    "the sweep is left out where versions are removed": "tests/store/test_history.py",
    "who removes versions does not let them settle": "tests/store/test_history.py",
    "a renewal that comes too late is accepted": "tests/agent/test_guard.py",
    "a lapse is forgotten": "tests/agent/test_guard.py",
    "a mate's claim is judged again": "tests/slurm/test_successor.py",
    "who dies with its claim is never doubted": "tests/slurm/test_successor.py",
    "claims are all alike": "tests/slurm/test_successor.py",
    "a warning that is repeated ends the wait for the end": "tests/slurm/test_successor.py",
    "an element requeues its array": "tests/slurm/test_successor.py",
    "a question that fails is never forgotten": "tests/agent/test_signals.py",
    "who is first believes the others": "tests/agent/test_signals.py",
    "a SIGTERM is not heard while a question is open": "tests/agent/test_signals.py",
}
"""The tests of a module, for what neither tables nor the simulator see."""

UNSEEN = {
    *BY_TESTS,
    "workers start on old news",
    "workers start though others may be going on",
    "a fence is not told",
    "who leaves says nothing",
    "workers that were asked to stop have succeeded",
    "of two deadlines the later counts",
    "who leaves takes part again",
    "who succeeds in a round that is to end begins anew",
    "who leaves does not say so",
    "workers that do not heed it are waited for",
}
"""Those that the simulator does not see: the guard makes up for them, or a run only takes longer, or the moment is too
rare."""
