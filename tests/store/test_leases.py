import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.protocol.state import Failure, Member, Seen, Stand
from hpcelastic.store import files
from hpcelastic.store.leases import Lease, LeaseObserver, OwnLease, read_lease, read_leases

NODE = "n1@0-ab"
MEMBER = Member(
    NODE, Stand.READY, 0, 2, "10.0.0.1", 4000, order=3, job="7.0", job_nodes=4, process="b:1:2:3", dead=("n",)
)
EXPIRY = 12.0


class Clock:
    """A clock that stands still until it is moved; ``ticks`` are moves that the next readings bring."""

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
    return LeaseObserver(tmp_path, EXPIRY, clock)


def alive(observer: LeaseObserver, node: str = NODE) -> bool:
    return observer.observe([node])[node].alive


# The owner


def test_a_lease_says_what_its_owner_says(tmp_path: Path) -> None:
    failure = Failure(1, NODE, 3, 1, -9, "killed by SIGKILL", "trace\nback", "/log", 12.5)
    failed = replace(MEMBER, stand=Stand.FAILED, round=1, failure=failure)
    OwnLease(tmp_path, NODE).renew(failed)
    assert read_lease(tmp_path / f"{NODE}.json") == Lease(1, failed)
    assert read_leases(tmp_path) == {NODE: Lease(1, failed)}


def test_every_renewal_is_another_beat(tmp_path: Path) -> None:
    lease, beats = OwnLease(tmp_path, NODE), set()
    for _ in range(5):
        lease.renew(MEMBER)
        beats.add(json.loads((tmp_path / f"{NODE}.json").read_bytes())["beat"])
    assert len(beats) == 5
    assert os.listdir(tmp_path) == [f"{NODE}.json"]


def test_only_news_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    lease, durable = OwnLease(tmp_path, NODE), []
    running = replace(MEMBER, stand=Stand.RUNNING, round=1)
    for member in (MEMBER, MEMBER, replace(MEMBER), running, running, MEMBER):
        synced.clear()
        lease.renew(member)
        durable.append(bool(synced))
    assert durable == [True, False, False, True, False, True]


def test_news_that_could_not_be_written_is_durable_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = OwnLease(tmp_path / "missing", NODE)
    with pytest.raises(files.StoreError):
        lease.renew(MEMBER)
    (tmp_path / "missing").mkdir()
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    lease.renew(MEMBER)
    assert synced


# The observer


def test_a_lease_lives_for_its_time_after_the_first_look(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([]) == {NODE: Seen(MEMBER, alive=True, proved=False)}
    clock.now += EXPIRY
    assert alive(observer)
    clock.now += 0.001
    assert observer.observe([]) == {NODE: Seen(MEMBER, alive=False, proved=False)}


def test_beats_keep_alive(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    for _ in range(10):
        lease.renew(MEMBER)
        assert alive(observer)
        clock.now += EXPIRY - 1
    assert alive(observer)
    clock.now += 1.001
    assert not alive(observer)


def test_a_node_that_beats_again_is_alive_again(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    clock.now += 100
    assert not alive(observer)
    lease.renew(MEMBER)
    assert alive(observer)


def test_a_beat_is_seen_however_late_the_observer_looks(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease = OwnLease(tmp_path, NODE)
    lease.renew(MEMBER)
    assert alive(observer)
    clock.now += 1000  # the observer slept, the owner did not
    lease.renew(MEMBER)
    assert alive(observer)


def test_time_spent_reading_counts_for_the_node(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    """Age runs from the end of the first read to the start of the last: a slow filesystem kills nobody."""
    OwnLease(tmp_path, NODE).renew(MEMBER)
    clock.ticks = iter([0.0, 50.0])  # the first read takes 50 s
    assert alive(observer)
    clock.now += EXPIRY
    assert alive(observer)
    clock.ticks = iter([0.0, 50.0])  # and so does the last
    assert alive(observer)


def test_what_a_node_says_is_seen_with_the_beat(tmp_path: Path, observer: LeaseObserver) -> None:
    lease = OwnLease(tmp_path, NODE)
    for stand in Stand:
        member = replace(MEMBER, stand=stand, round=1)
        lease.renew(member)
        assert observer.observe([])[NODE] == Seen(member, alive=True, proved=stand is not Stand.READY)


def test_a_renewal_before_our_eyes_proves_life(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    lease, path, seen = OwnLease(tmp_path, NODE), tmp_path / f"{NODE}.json", []

    def look() -> None:
        seen.append(observer.observe([NODE])[NODE].proved)

    look()  # no lease yet
    lease.renew(MEMBER)
    look()  # there is one, perhaps for long
    clock.now += 1
    look()
    lease.renew(MEMBER)
    look()
    look()
    path.unlink()
    look()
    clock.now += EXPIRY + 1
    look()  # dead by now, which is another question
    assert seen == [False, False, False, True, True, True, True]


def test_a_missing_lease_of_an_expected_node_ages_too(observer: LeaseObserver, clock: Clock) -> None:
    assert observer.observe([NODE]) == {NODE: Seen(None, alive=True, proved=False)}
    clock.now += EXPIRY
    assert alive(observer)
    clock.now += 0.001
    assert observer.observe([NODE]) == {NODE: Seen(None, alive=False, proved=False)}
    assert observer.observe([]) == {}


def test_a_lease_that_appears_late_lives(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    assert alive(observer)
    clock.now += EXPIRY + 1
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert observer.observe([NODE]) == {NODE: Seen(MEMBER, alive=True, proved=False)}


def damage(path: Path) -> None:
    path.write_bytes(b'{"beat":7,"mem')


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [damage, remove])
def test_a_lease_that_is_harmed_ages_and_its_word_stands(
    tmp_path: Path, observer: LeaseObserver, clock: Clock, harm: Callable[[Path], None]
) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    harm(tmp_path / f"{NODE}.json")
    seen = observer.observe([NODE])[NODE]
    assert (seen.member, seen.alive) == (MEMBER, True)
    clock.now += EXPIRY + 1
    seen = observer.observe([NODE])[NODE]
    assert (seen.member, seen.alive) == (MEMBER, False)


def test_a_lease_that_is_renewed_in_a_format_unknown_here_lives(
    tmp_path: Path, observer: LeaseObserver, clock: Clock
) -> None:
    for beat in range(5):
        (tmp_path / f"{NODE}.json").write_bytes(lease_json(beat=beat, stand="dancing"))
        assert observer.observe([NODE])[NODE] == Seen(None, alive=True, proved=beat > 0)
        clock.now += EXPIRY - 1


def test_a_lease_that_cannot_be_read_proves_nothing(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    path = tmp_path / f"{NODE}.json"
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    content = path.read_bytes()
    path.unlink()
    path.mkdir()
    for _ in range(3):
        clock.now += EXPIRY - 1
        assert observer.observe([NODE]) == {NODE: Seen(MEMBER, alive=True, proved=False)}
    path.rmdir()
    path.write_bytes(content)
    clock.now += EXPIRY + 1
    assert not alive(observer), "its age began anew with the last read that failed"


def test_a_lease_that_is_not_listed_is_not_asked_for(
    tmp_path: Path, observer: LeaseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(files, "read", asked.append)
    assert alive(observer)
    assert asked == [], "or NFS would remember for half a minute that it was absent"


def lease_json(**changes: object) -> bytes:
    document = {"beat": 1, "member": {"node": NODE, "stand": "ready", "round": 0, "local_world_size": 1}}
    document["member"] |= {"address": "a", "port": 1}  # type: ignore[operator]  # a dict
    for key, value in changes.items():
        if key == "beat":
            document[key] = value
        else:
            document["member"][key] = value  # type: ignore[index]  # a dict
    return json.dumps(document).encode()


UNREADABLE = {
    "empty": b"",
    "cut off": lease_json()[:-3],
    "no object": b"[]",
    "binary": bytes(range(256)),
    "unknown stand": lease_json(stand="dancing"),
    "beat is text": lease_json(beat="1"),
    "round is null": lease_json(round=None),
    "no member": b'{"beat":1}',
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_is_no_lease_is_a_node_that_says_nothing(
    tmp_path: Path, observer: LeaseObserver, clock: Clock, data: bytes
) -> None:
    (tmp_path / f"{NODE}.json").write_bytes(data)
    OwnLease(tmp_path, "n2@0-cd").renew(replace(MEMBER, node="n2@0-cd"))
    assert read_lease(tmp_path / f"{NODE}.json") is None
    assert set(read_leases(tmp_path)) == {"n2@0-cd"}
    assert observer.observe([])[NODE] == Seen(None, alive=True, proved=False)
    clock.now += EXPIRY + 1
    assert observer.observe([])[NODE] == Seen(None, alive=False, proved=False)


def test_a_lease_of_a_newer_writer_is_understood(tmp_path: Path) -> None:
    (tmp_path / f"{NODE}.json").write_bytes(lease_json(gpu_health="fine"))
    lease = read_lease(tmp_path / f"{NODE}.json")
    assert lease is not None and lease.member.node == NODE


def test_drafts_and_other_files_are_no_leases(tmp_path: Path, observer: LeaseObserver) -> None:
    (tmp_path / f".draft-{NODE}.json.ab12").write_bytes(lease_json())
    (tmp_path / "README").touch()
    assert observer.observe([]) == {}
    assert read_leases(tmp_path) == {}
    assert read_leases(tmp_path / "missing") == {}


def test_two_incarnations_of_a_node_are_two_nodes(tmp_path: Path, observer: LeaseObserver, clock: Clock) -> None:
    OwnLease(tmp_path, NODE).renew(MEMBER)
    assert alive(observer)
    clock.now += EXPIRY + 1
    OwnLease(tmp_path, "n1@1-cd").renew(replace(MEMBER, node="n1@1-cd"))
    assert {node: seen.alive for node, seen in observer.observe([]).items()} == {NODE: False, "n1@1-cd": True}
