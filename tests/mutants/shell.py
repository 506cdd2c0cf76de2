"""Faults that somebody might put into the code around the protocol some day: each one edit of the source."""

from tests.protocol.under_test import (
    CONDUCT,
    FENCE,
    FILES,
    GUARD,
    HISTORY,
    KEYVALUE,
    LEASES,
    PUBLISH,
    REGISTER,
    RENDEZVOUS,
    Patch,
)

_JUDGED = "return Claim.WON if held == draft.data else Claim.LOST"
_COMMIT = """            if newest.number != version.number:
                return True  # somebody was faster: decide anew
            return self._register.commit(version.number, encode(state))"""
_PUBLISHED = "return files.publish_new(self._path(after + 1), files.to_json(document))"
_LISTED = (
    'found = (name[1:-5] for name in files.names(self.directory) if name.startswith("v") and name.endswith(".json"))'
)
_POLLED = "found = (str(n) for n in range(1, self._newest.number + 2) if files.read(self._path(n)) is not None)"
_IN_PLACE = """path = self._path(after + 1)
        return files.publish_new(path, b'') and not files.publish(path, files.to_json(document))"""
_EXPIRY = "expiry = settings.rendezvous.lease + settings.rendezvous.margin"
_STOP_FIRST = """            yield from self._stop(state.reason)
        if self.part is not None:
            return"""
_ADD = "self._change(key, lambda old: str(_number(key, old) + amount))"

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
        "if numbers and numbers[-1] > self._newest.number:",
        "if numbers and numbers[-1] != self._newest.number:",
    ),
    "the sweep is left out where versions are removed": Patch(HISTORY, "            self._sweep(last)\n", ""),
    "who removes versions does not let them settle": Patch(
        HISTORY, "return sights[0][1] if now - sights[0][0] >= SETTLE else 0", "return newest"
    ),
    # rendezvous
    "nothing is compared": Patch(
        RENDEZVOUS, _COMMIT, "            return self._register.commit(newest.number, encode(state))"
    ),
    "there is no margin": Patch(RENDEZVOUS, _EXPIRY, "expiry = settings.rendezvous.lease"),
    "a lease runs from the end of its renewal": Patch(
        RENDEZVOUS, "self._said, self._lease_from = member, now", "self._said, self._lease_from = member, self._clock()"
    ),
    # leases
    "a lease ages while it is read": Patch(
        LEASES, "alive=before - watched.since", "alive=self._clock() - watched.since"
    ),
    "a lease is known from before it was read": Patch(
        LEASES, "watched = _Watched(beat, self._clock(), ", "watched = _Watched(beat, before - 2.0, "
    ),
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
        CONDUCT, _STOP_FIRST, "            yield from self._ready(state.round)\n" + _STOP_FIRST
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
    "a goodbye takes a success back": Patch(CONDUCT, "if self.member.stand is not Stand.SUCCEEDED:", "if True:"),
    "who leaves says nothing": Patch(CONDUCT, "yield self._say(Stand.LEFT, self.member.round)", "yield from ()"),
    "a worker's failure is kept quiet": Patch(
        CONDUCT, "        yield self._say(Stand.FAILED, failure.round, failure=failure, fenced=fenced)\n", ""
    ),
    # key-value store
    "a sum is made before it is compared": Patch(
        KEYVALUE, _ADD, "self._change(key, lambda old, seen=self.get(key): str(_number(key, seen) + amount))"
    ),
    # publications of workers
    "no round is shut out": Patch(FENCE, "                _shut(path)\n", "                pass\n"),
    "a round that has drafts is not shut out": Patch(FENCE, "        _remove_drafts(path)\n", "        return\n"),
    "drafts lie where they are published": Patch(
        PUBLISH, "directory = path.parent if fence is None else fence.drafts(path.parent)", "directory = path.parent"
    ),
}

PROFILE_OF = {
    "a node that may be long dead is taken in": "long waits",
    "any lease proves life": "long waits",
    "both twins are taken in": "long waits",
    "reopen forgets the members": "users",
    "a lost reply is taken for a loss": "counters",
    "there is no margin": "late renewals",
    "no round is shut out": "publishers",
    "a round that has drafts is not shut out": "publishers",
    "drafts lie where they are published": "publishers",
}
"""Where the simulator finds a fault soonest, for those that take long."""

BY_TESTS = {
    "a lease runs from the end of its renewal": "tests/rendezvous/test_rendezvous.py",
    "a lease ages while it is read": "tests/store/test_leases.py",
    "a lease is known from before it was read": "tests/store/test_leases.py",
    "the sweep is left out where versions are removed": "tests/store/test_history.py",
    "who removes versions does not let them settle": "tests/store/test_history.py",
    "a renewal that comes too late is accepted": "tests/agent/test_guard.py",
    "a lapse is forgotten": "tests/agent/test_guard.py",
}
"""The tests of a module, for what neither tables nor the simulator see."""

UNSEEN = {
    *BY_TESTS,
    "workers start on old news",
    "workers start though others may be going on",
    "a fence is not told",
    "who leaves says nothing",
}
"""Those that the simulator does not see: the guard makes up for them, or a run only takes longer, or the moment is too
rare."""
