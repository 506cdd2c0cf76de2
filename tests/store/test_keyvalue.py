import os
import signal
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.store import keyvalue
from hpcelastic.store.keyvalue import KeyValueStore
from tests.store.forking import forked, in_processes, read_to_end

ODD_KEYS = ["", ".", "..", "/", "a/b/../c", "a b\n\t", "%2F", "k-", "ü€🙂", "0:1:2//cuda//", "-", "*?[x]", "Key", "key"]


@pytest.fixture
def store(tmp_path: Path) -> KeyValueStore:
    return KeyValueStore(tmp_path / "kv", "a")


def other(tmp_path: Path) -> KeyValueStore:
    return KeyValueStore(tmp_path / "kv", "b")


def test_an_empty_store_has_nothing(store: KeyValueStore, tmp_path: Path) -> None:
    assert store.get("x") is None
    assert store.keys() == []
    assert not store.delete("x")
    assert os.listdir(tmp_path) == [], "looking writes nothing"


def test_what_is_set_is_seen_by_all(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    assert other(tmp_path).get("x") == "1"
    other(tmp_path).set("x", "2")
    assert store.get("x") == "2"


@pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
def test_any_string_is_a_key(store: KeyValueStore, tmp_path: Path, key: str) -> None:
    store.set(key, "v")
    assert other(tmp_path).get(key) == "v"
    assert store.keys() == [key]
    assert {path.name for path in tmp_path.iterdir()} == {"kv"}, "nothing outside the store's directory"


def test_odd_keys_do_not_meet(store: KeyValueStore) -> None:
    for key in ODD_KEYS:
        store.set(key, f"value of {key}")
    assert {key: store.get(key) for key in ODD_KEYS} == {key: f"value of {key}" for key in ODD_KEYS}
    assert store.keys() == sorted(ODD_KEYS)


@pytest.mark.parametrize(
    "value", ["", "\n", "ü€🙂", "x" * 100_000, "null"], ids=["empty", "newline", "wide", "long", "null"]
)
def test_any_string_is_a_value(store: KeyValueStore, tmp_path: Path, value: str) -> None:
    store.set("x", value)
    assert other(tmp_path).get("x") == value


def test_adding_starts_at_0_and_returns_the_sum(store: KeyValueStore, tmp_path: Path) -> None:
    assert [store.add("n", 5), other(tmp_path).add("n", -7), store.add("n", 0)] == [5, -2, -2]
    assert store.get("n") == "-2"
    store.set("n", "40")
    assert store.add("n", 2) == 42


COMPARE_SET = [
    pytest.param(None, None, "new", "new", "new", id="absent as expected"),
    pytest.param(None, "old", "new", None, None, id="absent unexpectedly"),
    pytest.param("old", "old", "new", "new", "new", id="as expected"),
    pytest.param("old", "other", "new", "old", "old", id="another value"),
    pytest.param("old", None, "new", "old", "old", id="present unexpectedly"),
    pytest.param("old", "", "new", "old", "old", id="empty is a value"),
    pytest.param("", "", "new", "new", "new", id="empty as expected"),
]


@pytest.mark.parametrize(("held", "expected", "desired", "returned", "holds"), COMPARE_SET)
def test_compare_set(
    store: KeyValueStore,
    held: str | None,
    expected: str | None,
    desired: str,
    returned: str | None,
    holds: str | None,
) -> None:
    if held is not None:
        store.set("x", held)
    assert store.compare_set("x", expected, desired) == returned
    assert store.get("x") == holds


def test_a_compare_set_in_vain_writes_nothing(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "old")
    before = sorted(path.name for path in (tmp_path / "kv").rglob("*"))
    assert store.compare_set("x", "other", "new") == "old"
    assert store.compare_set("y", "other", "new") is None
    assert sorted(path.name for path in (tmp_path / "kv").rglob("*")) == before


def test_a_compare_set_that_is_overtaken_returns_what_won(
    store: KeyValueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set("x", "old")
    get = KeyValueStore.get

    def overtaken(self: KeyValueStore, key: str) -> str | None:
        value = get(self, key)
        with monkeypatch.context() as patch:
            patch.setattr(KeyValueStore, "get", get)
            other(tmp_path).set("x", "won")
        return value

    with monkeypatch.context() as patch:
        patch.setattr(KeyValueStore, "get", overtaken)
        assert store.compare_set("x", "old", "mine") == "won"
    assert store.get("x") == "won"


def test_a_deleted_key_has_no_value_until_it_is_set_again(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    assert other(tmp_path).delete("x")
    assert store.get("x") is None
    assert store.keys() == []
    assert not store.delete("x")
    assert store.compare_set("x", None, "2") == "2"
    assert store.add("n", 1) == 1
    assert store.delete("n")
    assert store.add("n", 1) == 1


def test_waiting_for_what_is_there_takes_no_time(store: KeyValueStore) -> None:
    store.set("x", "")
    store.wait(["x"], 0)
    store.wait([], 0)


def test_a_wait_that_is_in_vain_names_the_keys_that_are_missing(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    with pytest.raises(TimeoutError) as caught:
        store.wait(["z", "x", "y"], 0)
    assert str(caught.value) == f"waited 0 s in {tmp_path / 'kv'} for y, z"


def test_a_wait_asks_for_patience_on_the_clock(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 100.0, []

    def pause(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(TimeoutError, match=r"waited 3\.5 s in .* for x"):
        store.wait(["x"], 3.5)
    assert sum(pauses) == pytest.approx(3.5)
    assert pauses[0] <= 0.05 and max(pauses) <= 0.5 and len(pauses) < 20, "quick at first, then gentle"


def test_a_wait_ends_when_the_last_key_comes(store: KeyValueStore, tmp_path: Path) -> None:
    waiter = threading.Thread(target=store.wait, args=(["x", "y"], 30.0))
    waiter.start()
    other(tmp_path).set("x", "1")
    other(tmp_path).set("y", "1")
    waiter.join(timeout=30.0)
    assert not waiter.is_alive()


def test_additions_of_many_processes_are_exact(tmp_path: Path) -> None:
    def add(index: int) -> list[int]:
        mine = KeyValueStore(tmp_path / "kv", str(index))
        return [mine.add("n", 1) for _ in range(50)]

    sums = in_processes(4, add)
    assert sorted(chain.from_iterable(sums)) == list(range(1, 201))
    assert KeyValueStore(tmp_path / "kv", "reader").get("n") == "200"


def test_of_racing_compare_sets_one_wins(tmp_path: Path) -> None:
    def race(index: int) -> list[Any]:
        mine = KeyValueStore(tmp_path / "kv", str(index))
        return [mine.compare_set(f"key{i}", None, f"{index}") for i in range(20)]

    returned = in_processes(4, race)
    reader = KeyValueStore(tmp_path / "kv", "reader")
    for i in range(20):
        winner = reader.get(f"key{i}")
        assert winner in ("0", "1", "2", "3")
        assert {mine[i] for mine in returned} == {winner}, "all agree on the winner"


def test_values_outlive_a_killed_writer(tmp_path: Path) -> None:
    def write() -> None:
        mine = KeyValueStore(tmp_path / "kv", "dead")
        mine.set("x", "1")
        mine.add("n", 3)
        os.kill(os.getpid(), signal.SIGKILL)

    with forked(write) as (_, result):
        read_to_end(result)
        store = KeyValueStore(tmp_path / "kv", "b")
        assert (store.get("x"), store.add("n", 1)) == ("1", 4)


def test_the_pace_of_waiting_is_gentle() -> None:
    first, most = keyvalue._PACE
    assert 0 < first < most <= 1
