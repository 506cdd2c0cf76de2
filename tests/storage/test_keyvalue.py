import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage import keyvalue
from hpcelastic.storage.history import SETTLE_DELAY
from hpcelastic.storage.keyvalue import MAX_VALUE, KeyValueStore
from tests.storage.forking import forked, in_processes, read_to_end

ODD_KEYS = ["", ".", "..", "/", "a/b/../c", "a b\n\t", "%2F", "k-", "ü€🙂", "0:1:2//cuda//", "-", "*?[x]", "Key", "key"]


@pytest.fixture
def store(tmp_path: Path) -> KeyValueStore:
    return KeyValueStore(tmp_path / "kv", "a")


def other(tmp_path: Path) -> KeyValueStore:
    return KeyValueStore(tmp_path / "kv", "b")


def test_an_empty_store_has_no_keys(store: KeyValueStore, tmp_path: Path) -> None:
    assert store.get("x") is None
    assert store.keys() == []
    assert not store.delete("x")
    assert os.listdir(tmp_path) == [], "reading writes nothing"


def test_all_see_a_value_that_was_set(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    assert other(tmp_path).get("x") == "1"
    other(tmp_path).set("x", "2")
    assert store.get("x") == "2"


@pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
def test_any_string_is_a_key(store: KeyValueStore, tmp_path: Path, key: str) -> None:
    store.set(key, "v")
    assert other(tmp_path).get(key) == "v"
    assert store.keys() == [key]
    assert {path.name for path in tmp_path.iterdir()} == {"kv"}, "no file outside the store's directory"


def test_unusual_keys_do_not_collide(store: KeyValueStore) -> None:
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


LONG = ["x" * 101, "x" * 102, "x" * 5000, "ü" * 40, "/" * 300, "\ud800" * 30]


@pytest.mark.parametrize("key", LONG, ids=range(len(LONG)))
def test_a_key_of_any_length_is_listed_by_its_name(store: KeyValueStore, tmp_path: Path, key: str) -> None:
    store.set(key, "v")
    store.set("short", "v")
    assert other(tmp_path).get(key) == "v"
    assert other(tmp_path).keys() == sorted([key, "short"])
    other(tmp_path).wait([key], 0)
    assert max(len(name) for name in os.listdir(tmp_path / "kv")) <= 102


REFUSED = [
    pytest.param(lambda store: store.set("x", "x" * (MAX_VALUE + 1)), "1048577 bytes, more than", id="too large"),
    pytest.param(lambda store: store.set("x", "ü" * (MAX_VALUE // 2 + 1)), "1048578 bytes", id="too large in UTF-8"),
    pytest.param(lambda store: store.compare_set("x", None, "x" * (MAX_VALUE + 1)), "write it to a file", id="desired"),
    pytest.param(lambda store: store.set("x", 7), "of type int; the store holds strings", id="number"),
    pytest.param(lambda store: store.set("x", None), "of type NoneType", id="nothing"),
    pytest.param(lambda store: store.compare_set("x", None, b""), "of type bytes", id="bytes"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED)
def test_invalid_values_are_refused_before_anything_is_written(
    store: KeyValueStore, tmp_path: Path, change: Callable[[KeyValueStore], None], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        change(store)
    assert os.listdir(tmp_path) == []


def test_an_update_to_a_value_that_is_too_large_changes_nothing(store: KeyValueStore) -> None:
    store.set("x", "a")
    with pytest.raises(ConfigError, match=r"1048577 bytes, more than .* write it to a file"):
        store.update("x", lambda old: f"{old}{'b' * MAX_VALUE}")
    assert store.get("x") == "a"


def test_the_largest_value_is_stored(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "x" * MAX_VALUE)
    assert other(tmp_path).get("x") == "x" * MAX_VALUE


@pytest.mark.parametrize("value", ["seven", "1.5", "0x10", "7 apples"])
def test_adding_to_a_text_is_an_error_without_an_effect(store: KeyValueStore, tmp_path: Path, value: str) -> None:
    store.set("n", value)
    with pytest.raises(ConfigError, match=r"add\('n'\): it holds '.*', which is not a whole number; use another key"):
        store.add("n", 1)
    assert other(tmp_path).get("n") == value
    other(tmp_path).set("n", "1")
    assert store.add("n", 1) == 2


def test_the_error_names_a_document_that_is_no_value(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    (tmp_path / "kv" / "k-x" / "v0000000002.json").write_text('{"version":2,"value":"plain"}')
    with pytest.raises(StoreError, match="holds 'plain', which is not a value of the store"):
        store.get("x")


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


def test_a_failed_compare_set_writes_nothing(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "old")
    before = sorted(path.name for path in (tmp_path / "kv").rglob("*"))
    assert store.compare_set("x", "other", "new") == "old"
    assert store.compare_set("y", "other", "new") is None
    assert sorted(path.name for path in (tmp_path / "kv").rglob("*")) == before


def test_a_compare_set_that_loses_a_race_returns_the_winner(
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


@pytest.mark.parametrize("value", ["1", ""], ids=["a value", "an empty value"])
def test_the_error_of_a_wait_names_the_missing_keys(store: KeyValueStore, tmp_path: Path, value: str) -> None:
    store.set("x", value)
    with pytest.raises(TimeoutError) as caught:
        store.wait(["z", "x", "y"], 0)
    assert str(caught.value) == f"waited 0 s in {tmp_path / 'kv'} for y, z"


def test_the_time_out_of_a_wait_uses_the_clock(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert pauses[0] <= 0.05 and max(pauses) <= 1 and len(pauses) < 20, "short at first, then longer"


def test_a_wait_ends_when_the_last_key_exists(store: KeyValueStore, tmp_path: Path) -> None:
    waiter = threading.Thread(target=store.wait, args=(["x", "y"], 30.0))
    waiter.start()
    other(tmp_path).set("x", "1")
    other(tmp_path).set("y", "1")
    waiter.join(timeout=30.0)
    assert not waiter.is_alive()


def test_a_wait_lists_the_directory_once_for_all_missing_keys(
    store: KeyValueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a", "b", "late"):
        other(tmp_path).set(key, "1")
    other(tmp_path).delete("late")
    looks: list[str] = []
    listdir, now = os.listdir, 0.0

    def listed(path: Path) -> list[str]:
        looks.append(path.name)
        return listdir(path)

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        looks.append("pause")

    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(TimeoutError, match="for c, d, late"):
        store.wait(["a", "b", "c", "d", "late"], 60.0)
    rounds = " ".join(looks).split(" pause ")
    assert rounds[0].split().count("k-a") == 1
    assert set(rounds[1:-1]) == {"kv k-late"}, "neither existing nor missing keys are opened again"
    assert len(rounds) < 150


def test_waiters_do_not_poll_at_the_same_times(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 0.0, []

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(TimeoutError):
        store.wait(["x"], 60.0)
    assert len(set(pauses[-20:-1])) > 10
    assert all(0.5 <= seconds <= 1.0 for seconds in pauses[-20:-1])


def test_a_key_is_not_polled_by_its_name(store: KeyValueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other(tmp_path).set("there", "1")
    asked: list[str] = []
    for name in ("open", "listdir", "lstat", "stat"):
        call = getattr(os, name)

        def traced(path: Any, *args: Any, call: Callable[..., Any] = call, **more: Any) -> Any:
            asked.append(os.path.basename(str(path)))
            return call(path, *args, **more)

        monkeypatch.setattr(os, name, traced)
    assert store.get("absent") is None
    assert not store.delete("absent")
    assert store.compare_set("absent", "1", "2") is None
    assert set(asked) == {"kv"}, "a client caches for half a minute that a name is absent"


def test_the_wait_for_a_key_that_this_client_does_not_see_yet(
    store: KeyValueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other(tmp_path).set("x", "1")
    slept: list[float] = []
    lstat, left = os.lstat, [errno.ENOENT] * 5

    def absent(path: Path) -> os.stat_result:
        if left:
            raise OSError(left.pop(), "cached as absent")
        return lstat(path)

    monkeypatch.setattr(os, "lstat", absent)
    monkeypatch.setattr(time, "sleep", slept.append)
    assert store.get("x") == "1"
    assert len(slept) == 5


def test_many_additions_cost_no_more_than_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    now, sizes = 0.0, []
    store = KeyValueStore(tmp_path / "kv", "a", lambda: now)
    for number in range(1, 2001):
        now += 0.25
        assert store.add("n", 1) == number
        sizes.append(len(os.listdir(tmp_path / "kv" / "k-n")))
    assert max(sizes) <= SETTLE_DELAY / 0.25 + 2 * keyvalue._KEPT_VERSIONS + 5
    assert other(tmp_path).add("n", 0) == 2000


def test_a_zombie_does_not_restore_a_removed_store(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    store.add("n", 1)
    shutil.rmtree(tmp_path / "kv")
    for operation in (
        lambda: store.get("x"),
        lambda: store.set("x", "2"),
        lambda: store.add("n", 1),
        lambda: store.compare_set("x", "1", "2"),
        lambda: store.delete("x"),
    ):
        with pytest.raises(StoreError, match=r"are gone; check that .* the run was not removed"):
            operation()
    assert os.listdir(tmp_path) == []


def test_a_store_that_a_zombie_creates_again_is_complete(store: KeyValueStore, tmp_path: Path) -> None:
    store.set("x", "1")
    shutil.rmtree(tmp_path / "kv")
    store.set("y", "late")
    reader = other(tmp_path)
    assert (reader.keys(), reader.get("x"), reader.add("x", 1)) == (["y"], None, 1)


def test_additions_of_many_processes_are_exact(tmp_path: Path) -> None:
    def add(index: int) -> list[int]:
        mine = KeyValueStore(tmp_path / "kv", str(index))
        return [mine.add("n", 1) for _ in range(50)]

    sums = in_processes(4, add)
    assert sorted(chain.from_iterable(sums)) == list(range(1, 201))
    assert KeyValueStore(tmp_path / "kv", "reader").get("n") == "200"


def test_one_of_racing_compare_sets_wins(tmp_path: Path) -> None:
    def race(index: int) -> list[Any]:
        mine = KeyValueStore(tmp_path / "kv", str(index))
        return [mine.compare_set(f"key{i}", None, f"{index}") for i in range(20)]

    returned = in_processes(4, race)
    reader = KeyValueStore(tmp_path / "kv", "reader")
    for i in range(20):
        winner = reader.get(f"key{i}")
        assert winner in ("0", "1", "2", "3")
        assert {mine[i] for mine in returned} == {winner}, "all agree about the winner"


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


def test_polls_of_a_wait_are_rare() -> None:
    first, longest = keyvalue._POLL_INTERVALS
    assert 0 < first < longest <= 1
