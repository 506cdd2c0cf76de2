import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Failure, Member, NodeState, Seen
from hpcelastic.storage import files, leases
from hpcelastic.storage.lease_names import member_of, parse
from hpcelastic.storage.leases import LeaseObserver, OwnLease, read_lease

NODE = "n1@0-ab"
MEMBER = Member(
    NODE, NodeState.READY, 0, 2, "10.0.0.1", 4000, order=3, job="7.0", job_nodes=4, process="b:1:2:3", dead=("n1@0-9",)
)
SEEN = replace(MEMBER, process="")
"""The part of the member that a name can contain."""

FAILURE = Failure(1, NODE, 3, 1, -9, "killed by SIGKILL", "trace\nback", "/log", 12.5)
FAILED = replace(MEMBER, node_state=NodeState.FAILED, round=1, failure=FAILURE)
EXPIRY = 12.0
read_leases = partial(leases.read_leases, processes=True)


class Clock:
    """A clock that advances only on request. ``ticks`` are advances by the next readings."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ticks: Iterator[float] = iter(())

    def __call__(self) -> float:
        self.now += next(self.ticks, 0.0)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def observer(tmp_path: Path, clock: Clock) -> LeaseObserver:
    return LeaseObserver(tmp_path, Expiry(EXPIRY - 2.0, 2.0), clock)


def alive(observer: LeaseObserver, node: str = NODE) -> bool:
    return observer.observe([node])[node].alive


def only(directory: Path) -> Path:
    """Return the only file in ``directory``."""
    (name,) = os.listdir(directory)
    return directory / name


def counters(directory: Path) -> tuple[int, int]:
    """Return the revision and the heartbeat of the only lease in ``directory``."""
    name = parse(only(directory).name)
    assert name is not None
    return name.revision, name.heartbeat


def beats(lease: OwnLease, times: int, member: Member = MEMBER) -> None:
    for _ in range(times):
        lease.renew(member)


# The owner


def test_a_lease_has_the_content_of_its_owner(tmp_path: Path) -> None:
    OwnLease(tmp_path, NODE).renew(FAILED)
    lease = read_lease(only(tmp_path))
    assert lease is not None and (lease.heartbeat, lease.member, lease.path) == (1, FAILED, only(tmp_path))
    assert read_leases(tmp_path) == {NODE: lease}
    assert json.loads(only(tmp_path).read_bytes()) == encode(FAILED), "readable as a file"


def test_only_leases_whose_names_do_not_hold_all_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(FAILED, node="n2@0-cd")
    for member in (MEMBER, other):
        OwnLease(tmp_path, member.node).renew(member)
    opened, read_json = list[str](), files.read_json
    monkeypatch.setattr(files, "read_json", lambda path: opened.append(path.name) or read_json(path))
    found = leases.read_leases(tmp_path)
    assert {node: lease.member for node, lease in found.items()} == {NODE: SEEN, other.node: other}
    assert [name.partition("~")[0] for name in opened] == [other.node]


def test_every_renewal_renames_the_same_file(tmp_path: Path) -> None:
    lease, names, inodes = OwnLease(tmp_path, NODE), set(), set()
    for _ in range(5):
        lease.renew(MEMBER)
        names.add(only(tmp_path).name)
        inodes.add(only(tmp_path).stat().st_ino)
    assert (len(names), len(inodes)) == (5, 1)
    assert counters(tmp_path) == (1, 5)


def test_a_new_revision_is_a_new_file_and_heartbeats_continue(tmp_path: Path) -> None:
    lease, moved = OwnLease(tmp_path, NODE), replace(MEMBER, node_state=NodeState.RUNNING, round=1)
    beats(lease, 3)
    beats(lease, 2, moved)
    assert counters(tmp_path) == (2, 5)
    assert read_leases(tmp_path)[NODE].member == moved


def test_a_heartbeat_is_one_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    made: list[str] = []
    for name in ("open", "fsync", "listdir", "unlink", "utime", "stat", "lstat", "link", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, call=call, **k: (made.append(name), call(*a, **k))[1])
    lease.renew(MEMBER)
    monkeypatch.undo()
    assert made == ["replace"]


def test_each_renewal_tells_its_duration(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER, 2.5)
    assert read_leases(tmp_path)[NODE].duration == 2.5
    observer.observe([])
    assert observer.expires(NODE) == clock.now + 2.5 + 2.0
    lease.renew(MEMBER, 4.0)
    observer.observe([])
    assert observer.expires(NODE) == clock.now + 4.0 + 2.0 and observer.limit() == 6.0
    lease.renew(MEMBER)
    observer.observe([])
    assert observer.expires(NODE) == clock.now + EXPIRY, "an unknown duration may be the longest"


def test_only_a_possible_last_state_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    lease, durable = OwnLease(tmp_path, NODE), []
    running, left = (
        replace(MEMBER, node_state=node_state, round=1) for node_state in (NodeState.RUNNING, NodeState.LEFT)
    )
    for member in (MEMBER, MEMBER, running, FAILED, FAILED, left):
        synced.clear()
        lease.renew(member)
        durable.append(bool(synced))
    assert durable == [False, False, False, True, False, True]


def test_a_new_revision_touches_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an NFSv3 client that listed the directory in the same tick would not list it again."""
    made: list[str] = []
    for name in ("replace", "unlink", "utime"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, call=call, **k: (made.append(name), call(*a, **k))[1])
    lease = OwnLease(tmp_path, NODE)
    for member in (MEMBER, FAILED):
        made.clear()
        lease.renew(member)
        assert made[0] == "replace"
        assert made[-1] == "utime"


def test_a_change_that_the_name_can_hold_is_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        lease.renew(replace(MEMBER, round=7))
    assert read_leases(tmp_path)[NODE].member == replace(MEMBER, round=7)
    assert counters(tmp_path) == (2, 2)


def test_what_the_name_holds_counts_more_than_the_content(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(FAILED)
    lease.renew(MEMBER)
    lease.renew(replace(MEMBER, round=7))
    assert observer.observe([])[NODE].member == replace(SEEN, round=7)
    assert read_leases(tmp_path)[NODE].member == replace(MEMBER, round=7)


def test_a_change_of_the_name_that_fails_is_published_as_another_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(files.StoreError):
            lease.renew(replace(MEMBER, round=7))
    lease.renew(replace(MEMBER, round=8))
    assert read_leases(tmp_path)[NODE].member == replace(MEMBER, round=8)
    assert counters(tmp_path) == (3, 3)


def test_a_revision_that_could_not_be_written_is_durable_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = OwnLease(tmp_path / "missing", NODE)
    with pytest.raises(files.StoreError):
        lease.renew(FAILED)
    (tmp_path / "missing").mkdir()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    lease.renew(FAILED)
    assert synced


def test_a_name_exists_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, found = OwnLease(tmp_path, NODE), []
    lease.renew(MEMBER)
    for name in ("replace", "unlink", "utime"):
        call = getattr(os, name)

        def watched(*args: Any, call: Callable[..., Any] = call, **more: Any) -> Any:
            found.append(NODE in read_leases(tmp_path))
            call(*args, **more)
            found.append(NODE in read_leases(tmp_path))

        monkeypatch.setattr(os, name, watched)
    for member in (MEMBER, FAILED, FAILED, MEMBER):
        lease.renew(member)
    assert len(found) > 10
    assert all(found)


class Rename:
    """`os.replace` with the faults of a shared filesystem. ``faults`` are for the next calls."""

    def __init__(self, *faults: tuple[str, int]) -> None:
        self.faults = list(faults)
        self.real = os.replace

    def __call__(self, src: Path, dst: Path) -> None:
        happens, code = self.faults.pop(0) if self.faults else ("happens", 0)
        if happens == "happens":
            self.real(src, dst)
        if code:
            raise OSError(code, os.strerror(code))


NAME_TAKEN = {
    "the reply is lost and the call repeated": [("happens", errno.ENOENT)],
    "an error after it happened": [("happens", errno.EIO)],
    "stale first": [("", errno.ESTALE)],
    "interrupted": [("", errno.EINTR), ("", errno.EINTR)],
    "only errors after it happened": [("happens", errno.EIO), ("", errno.EIO), ("", errno.EIO)],
}


def renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, int]], member: Member) -> OwnLease:
    """Return a lease whose second renewal, with ``member``, has met these faults."""
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    monkeypatch.setattr(os, "replace", Rename(*faults))
    lease.renew(member)
    return lease


@pytest.mark.parametrize("faults", NAME_TAKEN.values(), ids=NAME_TAKEN.keys())
def test_a_heartbeat_with_a_lost_reply_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, int]]
) -> None:
    lease = renewed(tmp_path, monkeypatch, faults, MEMBER)
    assert counters(tmp_path) == (1, 2), "renamed once, and not published again"
    lease.renew(MEMBER)
    assert counters(tmp_path) == (1, 3)


@pytest.mark.parametrize("faults", NAME_TAKEN.values(), ids=NAME_TAKEN.keys())
def test_a_change_of_the_name_with_a_lost_reply_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, int]]
) -> None:
    renewed(tmp_path, monkeypatch, faults, replace(MEMBER, round=7))
    assert read_leases(tmp_path)[NODE].member == replace(MEMBER, round=7)
    assert counters(tmp_path) == (2, 2), "renamed once, and not published again"


def test_a_failed_heartbeat_is_an_error_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    monkeypatch.setattr(os, "replace", Rename(*[("", errno.EIO)] * 3, ("", errno.EROFS)))
    for message in ("Input/output error", "Read-only"):
        with pytest.raises(files.StoreError, match=message):
            lease.renew(MEMBER)
    lease.renew(MEMBER)
    assert counters(tmp_path) == (1, 4)


def test_a_late_heartbeat_leaves_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    was = only(tmp_path)
    monkeypatch.setattr(os, "replace", Rename(*[("", errno.EIO)] * 3))
    with pytest.raises(files.StoreError):
        lease.renew(MEMBER)
    monkeypatch.undo()
    was.rename(tmp_path / was.name.replace("~1~1~", "~1~2~"))  # the server has executed it nevertheless
    lease.renew(MEMBER)
    assert counters(tmp_path) == (2, 3), "published again, and the old name is removed"


def test_a_removed_name_is_published_again(tmp_path: Path) -> None:
    lease = OwnLease(tmp_path, NODE)
    beats(lease, 2)
    only(tmp_path).unlink()
    lease.renew(MEMBER)
    assert counters(tmp_path) == (2, 3)
    lease.renew(MEMBER)
    assert counters(tmp_path) == (2, 4)


def test_the_number_of_a_failed_revision_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    with monkeypatch.context() as patch, pytest.raises(files.StoreError):
        patch.setattr(files, "touch_directory", lambda directory: None)
        patch.setattr(files, "sync_directory", fail)  # published, but perhaps not durable
        lease.renew(FAILED)
    assert len(os.listdir(tmp_path)) == 2
    lease.renew(MEMBER)
    assert counters(tmp_path) == (3, 3)
    assert read_leases(tmp_path)[NODE].member == MEMBER


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_an_old_name_that_cannot_be_removed_fails_no_renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        lease.renew(FAILED)
        assert len(os.listdir(tmp_path)) == 2
    assert read_leases(tmp_path)[NODE].member == FAILED
    lease.renew(MEMBER)
    assert counters(tmp_path) == (3, 3), "it is removed with the next revision"


# The observer: age


def test_a_lease_is_valid_for_its_duration_after_the_first_listing(
    tmp_path: Path, observer: LeaseObserver, clock: Clock
) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([]) == {NODE: Seen(SEEN, alive=True, proved=False)}
    clock.now += EXPIRY
    assert alive(observer)
    clock.now += 0.001
    assert observer.observe([]) == {NODE: Seen(SEEN, alive=False, proved=False)}


def test_heartbeats_keep_a_lease_valid(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    for _ in range(10):
        lease.renew(MEMBER)
        assert alive(observer)
        clock.now += EXPIRY - 1
    assert alive(observer)
    clock.now += 1.001
    assert not alive(observer)


def test_a_node_with_a_new_heartbeat_is_alive_again(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    clock.now += 100
    assert not alive(observer)
    lease.renew(MEMBER)
    assert alive(observer)


def test_a_heartbeat_is_seen_by_a_late_observer(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    clock.now += 1000  # the observer was suspended, and the owner was not
    lease.renew(MEMBER)
    assert alive(observer)


def test_time_spent_listing_counts_for_the_node(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    """The age begins at the end of the first listing and ends at the start of the last: a slow filesystem kills no
    node."""
    OwnLease(tmp_path, NODE).renew(MEMBER)
    clock.ticks = iter([0.0, 50.0])  # the first listing takes 50 s
    assert alive(observer)
    clock.now += EXPIRY
    assert alive(observer)
    clock.ticks = iter([0.0, 50.0])  # and the last one too
    assert alive(observer)


def test_the_content_is_seen_with_the_heartbeat(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    for node_state in NodeState:
        lease.renew(replace(MEMBER, node_state=node_state, round=1))
        seen = Seen(replace(SEEN, node_state=node_state, round=1), alive=True, proved=node_state is not NodeState.READY)
        assert observer.observe([])[NODE] == seen


def test_an_observed_renewal_proves_life(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease, seen = OwnLease(tmp_path, NODE), []

    def look() -> None:
        seen.append(observer.observe([NODE])[NODE].proved)

    lease.renew(MEMBER)
    look()  # it exists, perhaps for long
    clock.now += 1
    look()
    lease.renew(MEMBER)
    look()
    look()
    only(tmp_path).unlink()
    look()
    clock.now += EXPIRY + 1
    look()  # dead meanwhile, which does not matter here
    assert seen == [False, False, True, True, True, True]


@pytest.mark.parametrize("there", [True, False])
def test_a_renewal_between_two_distant_listings_proves_nothing(
    tmp_path: Path, observer: LeaseObserver, clock: Clock, there: bool
) -> None:
    """It may have been renewed right after the first listing, and its owner may have died then."""
    lease, seen = OwnLease(tmp_path, NODE), []

    def renewed_within(seconds: float) -> None:
        clock.now += seconds
        lease.renew(MEMBER)
        seen.append(observer.observe([])[NODE])

    if there:
        lease.renew(MEMBER)
    observer.observe([])
    for seconds in (EXPIRY + 0.001, EXPIRY, EXPIRY + 0.001):
        renewed_within(seconds)
    assert [look.proved for look in seen] == [False, True, False], "and an earlier proof does not count"
    assert all(look.alive for look in seen)


@pytest.mark.parametrize("expected", [[], [NODE]])
def test_an_observed_creation_of_a_lease_proves_life(
    tmp_path: Path, observer: LeaseObserver, expected: list[str]
) -> None:
    observer.observe(expected)
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe(expected)[NODE] == Seen(SEEN, alive=True, proved=True)


def test_a_failed_listing_does_not_count_as_the_first(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    with monkeypatch.context() as patch, pytest.raises(files.StoreError):
        patch.setattr(os, "listdir", fail)
        observer.observe([NODE])
    assert not observer.observe([NODE])[NODE].proved


def test_a_missing_lease_of_an_expected_node_ages_too(observer: LeaseObserver, clock: Clock) -> None:
    for _ in range(5):
        assert observer.observe([NODE]) == {NODE: Seen(None, alive=True, proved=False)}
    clock.now += EXPIRY
    assert alive(observer)
    clock.now += 0.001
    assert observer.observe([NODE]) == {NODE: Seen(None, alive=False, proved=False)}
    assert observer.observe([]) == {}


def test_a_lease_that_appears_late_is_alive(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    for alive_still in (True, True, True, True, False):
        clock.now += EXPIRY + 1
        assert alive(observer) is alive_still
    clock.now += EXPIRY
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([NODE]) == {NODE: Seen(SEEN, alive=True, proved=True)}


def test_a_listing_without_a_lease_is_no_evidence(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    """In a large directory, a listing may miss a file that is renamed at that moment under both its names."""
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    path, away = only(tmp_path), tmp_path.parent / "away"
    clock.now += EXPIRY + 1  # it may have been renewed since
    path.rename(away)
    assert observer.observe([]) == {NODE: Seen(SEEN, alive=True, proved=False)}
    clock.now += 1
    away.rename(path)
    assert not alive(observer), "this listing shows an old name"


@pytest.mark.parametrize(
    ("complete", "missed", "rounds"),
    [
        pytest.param(True, [[]], [1, 1], id="nothing is missed"),
        pytest.param(True, [["n1"], []], [1, 1], id="the second listing shows it"),
        pytest.param(True, [["n1"], ["n2"]], [1, 1], id="each listing misses another one"),
        pytest.param(True, [["n1"], ["n1"]], [0, 1], id="the second listing misses it too"),
        pytest.param(False, [["n1"]], [0, 1], id="only one listing"),
    ],
)
def test_a_complete_observation_looks_again_for_missed_leases(
    tmp_path: Path,
    observer: LeaseObserver,
    monkeypatch: pytest.MonkeyPatch,
    complete: bool,
    missed: list[list[str]],
    rounds: list[int],
) -> None:
    nodes = [NODE, "n2@0-ab"]
    owned = {node: OwnLease(tmp_path, node) for node in nodes}
    for round in (0, 1):
        for node, lease in owned.items():
            lease.renew(replace(MEMBER, node=node, round=round))
        if round == 0:
            observer.observe([])
    shown, left = files.names, iter(missed)

    def listing(directory: Path) -> list[str]:
        without = next(left)  # no listing more than these
        return [name for name in shown(directory) if name.partition("@")[0] not in without]

    monkeypatch.setattr(files, "names", listing)
    seen = observer.observe([], complete=complete)
    assert [member.round for node in nodes if (member := seen[node].member)] == rounds
    assert next(left, None) is None


def test_a_lease_that_was_removed_is_looked_for_once(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    observer.observe([])
    only(tmp_path).unlink()
    shown, listings = files.names, list[Path]()
    monkeypatch.setattr(files, "names", lambda directory: listings.append(directory) or shown(directory))
    observer.observe([], complete=True)
    observer.observe([], complete=True)
    assert len(listings) == 3


def test_a_node_that_all_listings_miss_dies(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    clock.now += EXPIRY - 1
    only(tmp_path).unlink()
    for seconds in (0.0, 1.0, 1.0, 1.0, EXPIRY - 3):
        clock.now += seconds
        assert observer.observe([NODE]) == {NODE: Seen(SEEN, alive=True, proved=False)}
    clock.now += 0.001
    assert observer.observe([NODE]) == {NODE: Seen(SEEN, alive=False, proved=False)}
    assert observer.observe([]) == {}


def test_a_node_that_two_listings_miss_by_chance_is_not_dead(
    tmp_path: Path, observer: LeaseObserver, clock: Clock
) -> None:
    """The observer hung for long between two listings, each of which coincided with a renewal."""
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    path, away = only(tmp_path), tmp_path.parent / "away"
    path.rename(away)
    for _ in range(4):
        clock.now += EXPIRY + 1
        assert alive(observer)
    away.rename(path)
    lease.renew(MEMBER)
    assert alive(observer)
    only(tmp_path).unlink()
    for _ in range(4):
        clock.now += EXPIRY + 1
        assert alive(observer), "the count starts again"
    clock.now += EXPIRY + 1
    assert not alive(observer)


def test_a_listing_without_the_lease_does_not_make_a_node_alive(
    tmp_path: Path, observer: LeaseObserver, clock: Clock
) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    clock.now += EXPIRY + 1
    assert not alive(observer)
    only(tmp_path).unlink()
    assert not alive(observer)


def test_a_failed_listing_proves_nothing(
    tmp_path: Path, observer: LeaseObserver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    clock.now += EXPIRY + 1
    with monkeypatch.context() as patch, pytest.raises(files.StoreError):
        patch.setattr(os, "listdir", fail)
        observer.observe([NODE])
    lease.renew(MEMBER)
    assert alive(observer)


# The observer: names


def test_the_greater_of_two_names_counts(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    beats(lease, 9)
    first = only(tmp_path)
    data = first.read_bytes()
    lease.renew(replace(MEMBER, round=1))
    first.write_bytes(data)  # the owner died before the removal
    assert observer.observe([])[NODE].member == replace(SEEN, round=1)
    assert read_leases(tmp_path)[NODE].heartbeat == 10
    first.unlink()
    clock.now += 1
    assert observer.observe([])[NODE] == Seen(replace(SEEN, round=1), alive=True, proved=False)


def test_an_older_name_does_not_prove_life(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    """A late listing shows an earlier state, which says nothing about the present one."""
    lease = OwnLease(tmp_path, NODE)
    beats(lease, 3)
    was = only(tmp_path)
    lease.renew(replace(MEMBER, round=1))
    now = only(tmp_path)
    assert alive(observer)
    clock.now += EXPIRY + 1
    now.rename(was)
    assert observer.observe([]) == {NODE: Seen(replace(SEEN, round=1), alive=True, proved=False)}
    was.rename(now)
    assert not alive(observer)


def test_the_version_of_a_lease_changes_with_each_renewal(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    assert observer.lease_versions([NODE]) == {}
    marks = []
    for member in (MEMBER, MEMBER, FAILED):
        lease.renew(member)
        marks += [observer.lease_versions([NODE, "n9@0-ab"])]
        assert marks[-1] == observer.lease_versions([NODE]) == {NODE: only(tmp_path).name}
    assert observer.lease_versions([]) == observer.lease_versions([NODE[:-1]]) == {}
    assert len({*map(str, marks)}) == 3


def test_the_newest_of_two_names_is_the_version_of_a_lease(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    first = only(tmp_path)
    lease.renew(MEMBER)
    newest = only(tmp_path).name
    first.write_text("{}")
    assert observer.lease_versions([NODE]) == {NODE: newest}


def test_members_in_names_are_not_opened(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, asked = OwnLease(tmp_path, NODE), []
    monkeypatch.setattr(files, "read", asked.append)
    for member in (MEMBER, MEMBER, replace(MEMBER, node_state=NodeState.LEFT)):
        lease.renew(member)
        observer.observe([NODE, "n2@0-ab"])
    assert asked == []


def test_a_content_is_read_once(tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, read, asked = OwnLease(tmp_path, NODE), files.read, []
    monkeypatch.setattr(files, "read", lambda path: (asked.append(path), read(path))[1])
    for _ in range(5):
        lease.renew(FAILED)
        assert observer.observe([])[NODE].member == FAILED, "with its process, which only the content has"
    assert len(asked) == 1


def test_a_content_that_could_not_be_read_is_read_again_although_its_owner_renews_the_lease(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, read = OwnLease(tmp_path, NODE), files.read
    lease.renew(MEMBER)
    assert observer.observe([])[NODE].member == SEEN
    monkeypatch.setattr(files, "read", lambda path: None)
    lease.renew(FAILED)
    assert observer.observe([])[NODE].member == SEEN
    monkeypatch.setattr(files, "read", read)
    lease.renew(FAILED)
    assert observer.observe([])[NODE].member == FAILED


def test_a_lease_with_renewals_in_an_unknown_format_is_alive(
    tmp_path: Path, observer: LeaseObserver, clock: Clock
) -> None:
    for heartbeat in range(5):
        path = tmp_path / f"{NODE}~word-{heartbeat % 2}.json"
        path.write_bytes(b'{"dancing":true}')
        assert observer.observe([NODE])[NODE] == Seen(None, alive=True, proved=heartbeat > 0)
        clock.now += EXPIRY - 1
        path.unlink()


def test_the_content_replaces_an_unknown_summary(tmp_path: Path, observer: LeaseObserver) -> None:
    (tmp_path / f"{NODE}~1~1~ready,0,fine.json").write_text(json.dumps({**encode(MEMBER), "gpu_health": "fine"}))
    assert observer.observe([])[NODE] == Seen(MEMBER, alive=True, proved=False)
    assert read_leases(tmp_path)[NODE].member == MEMBER


FOREIGN = [
    f".draft-{NODE}~1~1~ready.json.ab12",
    f"{NODE}.json",
    f"{NODE}~1~1~ready.json~",
    f"{NODE}~1~1~ready.json.lock",
    "README",
    "n1~1~1~x.json",
    ".nfs0000000000a1b2",
    "~.json",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_other_files_are_no_leases(tmp_path: Path, observer: LeaseObserver, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(encode(MEMBER)))
    assert observer.observe([]) == {}
    assert read_leases(tmp_path) == {}
    assert read_leases(tmp_path / "missing") == {}


def test_two_incarnations_of_a_node_are_two_nodes(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    clock.now += EXPIRY + 1
    OwnLease(tmp_path, "n1@1-cd").renew(replace(MEMBER, node="n1@1-cd"))
    assert {node: seen.alive for node, seen in observer.observe([]).items()} == {NODE: False, "n1@1-cd": True}


# The observer: unreadable contents


def hidden(directory: Path) -> Callable[[], None]:
    """Remove the content of the only lease, but not its name. Return a function that restores it."""
    path = only(directory)
    data = path.read_bytes()
    path.unlink()
    path.mkdir()

    def bring_back() -> None:
        path.rmdir()
        path.write_bytes(data)

    return bring_back


def test_a_node_with_an_unreadable_content_keeps_its_previous_state(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    observer.observe([])
    lease.renew(FAILED)
    bring_back = hidden(tmp_path)
    for _ in range(3):
        assert observer.observe([])[NODE] == Seen(SEEN, alive=True, proved=True), (
            "a failure without report does not count"
        )
    bring_back()
    assert observer.observe([])[NODE].member == FAILED


def test_the_name_counts_if_the_content_can_never_be_read(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    observer.observe([])
    lease.renew(FAILED)
    bring_back = hidden(tmp_path)
    for _ in range(4):
        seen = observer.observe([])[NODE]
    assert seen.member == replace(SEEN, node_state=NodeState.FAILED, round=1)
    bring_back()
    assert observer.observe([])[NODE].member == FAILED, "published late rather than never"


def test_the_name_of_a_newcomer_counts_until_its_content_can_be_read(tmp_path: Path, observer: LeaseObserver) -> None:
    more = replace(MEMBER, dead=("n1@0-9", "n1@"))  # an odd one, which a name cannot hold
    OwnLease(tmp_path, NODE).renew(more)
    bring_back = hidden(tmp_path)
    assert observer.observe([])[NODE].member == SEEN
    bring_back()
    assert observer.observe([])[NODE].member == more


def test_a_failure_of_a_newcomer_counts_only_with_its_report(tmp_path: Path, observer: LeaseObserver) -> None:
    OwnLease(tmp_path, NODE).renew(FAILED)
    bring_back = hidden(tmp_path)
    assert observer.observe([])[NODE] == Seen(None, alive=True, proved=False)
    bring_back()
    assert observer.observe([])[NODE].member == FAILED


def test_a_lease_that_is_renamed_during_a_read_is_read_under_its_new_name(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, read, asked = OwnLease(tmp_path, NODE), files.read, []
    lease.renew(FAILED)

    def beat_first(path: Path) -> bytes | None:
        if not asked:
            lease.renew(FAILED)
        asked.append(path)
        return read(path)

    monkeypatch.setattr(files, "read", beat_first)
    assert observer.observe([])[NODE].member == FAILED
    asked.clear()
    assert read_leases(tmp_path)[NODE].member == FAILED


def test_a_lease_that_is_not_listed_is_not_opened(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(files, "read", asked.append)
    assert alive(observer)
    assert asked == [], "otherwise NFS would cache for half a minute that it is absent"


# All leases at once


UNREADABLE = {
    "empty": b"",
    "incomplete": json.dumps(encode(MEMBER)).encode()[:-3],
    "no object": b"[]",
    "binary": bytes(range(256)),
    "unknown node state": json.dumps({**encode(MEMBER), "node_state": "dancing"}).encode(),
    "round is null": json.dumps({**encode(MEMBER), "round": None}).encode(),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_the_name_replaces_an_invalid_content(tmp_path: Path, observer: LeaseObserver, data: bytes) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    only(tmp_path).write_bytes(data)
    assert read_lease(only(tmp_path)) is None
    assert read_leases(tmp_path)[NODE].member == SEEN
    assert observer.observe([])[NODE].member == SEEN


def test_the_leases_of_one_name(tmp_path: Path) -> None:
    for node in (NODE, "n1@1-cd", "n10@0-ab", "n1-x@0-ab"):
        OwnLease(tmp_path, node).renew(replace(MEMBER, node=node))
    assert list(read_leases(tmp_path, node_name="n1")) == [NODE, "n1@1-cd"]


def test_all_leases_are_read_with_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("n1", "n2"):
        OwnLease(tmp_path, f"{name}@0-a").renew(replace(MEMBER, node=f"{name}@0-a"))
    listings: list[Path] = []
    list_names = files.names

    def counted(directory: Path) -> list[str]:
        listings.append(directory)
        return list_names(directory)

    monkeypatch.setattr(files, "names", counted)
    assert len(read_leases(tmp_path)) == 2 and len(listings) == 1
    assert read_leases(tmp_path, "n3") == {} and len(listings) == 2


def test_other_files_are_not_read_as_leases(tmp_path: Path) -> None:
    (tmp_path / f"{NODE}.json").write_text(json.dumps(encode(MEMBER)))
    assert read_lease(tmp_path / f"{NODE}.json") is None
    assert read_lease(tmp_path / f"{NODE}~1~1~+.json") is None


def test_a_node_with_a_long_name_has_a_lease(tmp_path: Path, observer: LeaseObserver) -> None:
    node = f"{'n' * 150}@0-{'a' * 30}"
    lease, member = OwnLease(tmp_path, node), replace(MEMBER, node=node, dead=())
    beats(lease, 12, member)
    assert len(only(tmp_path).name) <= 230
    assert observer.observe([])[node].member == member
    name = parse(only(tmp_path).name)
    assert name is not None and member_of(name) == (None, False)


def test_a_node_that_died_long_ago_is_forgotten(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([])[NODE].alive
    clock.now += EXPIRY + 3600.0
    assert not observer.observe([])[NODE].alive
    for path in tmp_path.iterdir():
        path.unlink()
    assert observer.observe([]) == {} and not observer._contents
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([])[NODE].alive
