"""One contract for TCPStore, torch's FileStore and `RunStore`. Each difference is listed with its reason."""

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.utils import store as helpers

from hpcelastic.pytorch import RunStore
from hpcelastic.pytorch.store import WaitTimeout
from hpcelastic.storage import history, keyvalue

SHORT = timedelta(milliseconds=500)
LONG = timedelta(seconds=60)
Call = tuple[Any, ...]


def tcp(_: Path) -> dist.Store:
    return dist.TCPStore("127.0.0.1", 0, 1, True, timeout=SHORT)


def file(directory: Path) -> dist.Store:
    store = dist.FileStore(str(directory / "file"), 1)
    store.set_timeout(SHORT)
    return store


def ours(directory: Path) -> dist.Store:
    return RunStore(directory / "ours", SHORT)


def ours_with_a_prefix(directory: Path) -> dist.Store:
    return dist.PrefixStore("some", ours(directory))


STORES = [tcp, file, ours, ours_with_a_prefix]

WAITED = dist.DistStoreError
CONTRACT: dict[str, list[tuple[Call, Any]]] = {
    "a value": [(("set", "a", "1"), None), (("get", "a"), b"1"), (("set", "a", "2"), None), (("get", "a"), b"2")],
    "bytes": [(("set", "b", b"\xff\x00\xed\xb3\xbf"), None), (("get", "b"), b"\xff\x00\xed\xb3\xbf")],
    "no ASCII": [(("set", "ä/ö", "ü"), None), (("get", "ä/ö"), b"\xc3\xbc")],
    "nothing": [(("set", "", ""), None), (("get", ""), b""), (("check", [""]), True)],
    "a number": [(("add", "n", 2), 2), (("add", "n", -5), -3), (("add", "n", 0), -3), (("get", "n"), b"-3")],
    "a number of digits": [(("set", "n", "41"), None), (("add", "n", 1), 42)],
    "a text is no number": [(("set", "n", "x"), None), (("add", "n", 1), ValueError), (("get", "n"), b"x")],
    "compare and set": [
        (("compare_set", "c", "", "x"), b"x"),
        (("compare_set", "c", "x", "y"), b"y"),
        (("compare_set", "c", "x", "z"), b"y"),
        (("compare_set", "c", "", "z"), b"y"),
        (("get", "c"), b"y"),
    ],
    "compare what is absent": [(("compare_set", "c", "e", "x"), b"e"), (("check", ["c"]), False)],
    "compare with an empty value": [(("set", "c", ""), None), (("compare_set", "c", "", "x"), b"x")],
    "append": [(("append", "a", "1"), None), (("append", "a", b"\xff"), None), (("get", "a"), b"1\xff")],
    "check": [
        (("set", "a", "1"), None),
        (("check", ["a"]), True),
        (("check", ["a", "b"]), False),
        (("check", []), True),
    ],
    "wait": [(("set", "a", "1"), None), (("wait", ["a"]), None), (("wait", []), None), (("wait", ["a"], LONG), None)],
    "wait in vain": [(("wait", ["zz"]), WAITED), (("wait", ["zz"], SHORT), WAITED)],
    "get in vain": [(("get", "zz"), WAITED)],
    "delete": [
        (("set", "a", "1"), None),
        (("delete_key", "a"), True),
        (("delete_key", "a"), False),
        (("check", ["a"]), False),
        (("get", "a"), WAITED),
    ],
    "a key comes back": [
        (("set", "a", "1"), None),
        (("delete_key", "a"), True),
        (("compare_set", "a", "", "2"), b"2"),
        (("get", "a"), b"2"),
    ],
    "several": [
        (("multi_set", ["x", "y"], ["1", b"\xff"]), None),
        (("multi_get", ["y", "x"]), [b"\xff", b"1"]),
        (("multi_get", []), []),
        (("multi_get", ["x", "zz"]), WAITED),
    ],
    "several that do not match": [(("multi_set", ["x"], ["1", "2"]), WAITED)],
    "a queue": [
        (("queue_push", "q", "1"), None),
        (("queue_push", "q", b"\xff"), None),
        (("queue_len", "q"), 2),
        (("check", ["q"]), True),
        (("wait", ["q"]), None),
        (("queue_pop", "q"), b"1"),
        (("queue_pop", "q", False), b"\xff"),
        (("queue_len", "q"), 0),
        (("check", ["q"]), False),
        (("queue_pop", "q", False), dist.QueueEmptyError),
        (("queue_pop", "q"), WAITED),
    ],
    "a queue beside a key": [
        (("set", "q", "1"), None),
        (("queue_push", "q", "a"), None),
        (("get", "q"), b"1"),
        (("delete_key", "q"), True),
        (("queue_len", "q"), 1),
    ],
    "how many keys": [(("num_keys",), 0), (("set", "a", "1"), None), (("num_keys",), 1)],
    "which keys": [(("set", "b", "1"), None), (("set", "a", "1"), None), (("list_keys",), ["a", "b"])],
    "the extended interface": [(("has_extended_api",), True)],
}
if hasattr(dist.Store, "barrier"):  # torch 2.10 has none
    CONTRACT["a barrier"] = [(("barrier", "b", 1), None)]
    CONTRACT["a barrier in vain"] = [(("barrier", "b", 2, SHORT), WAITED)]

OTHERWISE = {
    ("tcp", "a text is no number"): "its server drops the connection, and all later operations fail",
    ("tcp", "how many keys"): "it counts a key of its own",
    ("file", "how many keys"): "it counts a key of its own",
    ("file", "which keys"): "it names one of its own as well",
    ("file", "delete"): "it returns True for a key that is absent",
    ("file", "several that do not match"): "it sets as many as there are",
    ("file", "a queue"): "it has no queues",
    ("file", "a queue beside a key"): "it has no queues",
    ("file", "the extended interface"): "it returns False, although it has most of it",
    ("ours_with_a_prefix", "a queue"): "torch's PrefixStore passes queues on to stores in C++ only",
    ("ours_with_a_prefix", "a queue beside a key"): "the same",
    ("ours_with_a_prefix", "which keys"): "the same of list_keys",
}
"""The exceptions of each store from the contract, with reasons."""


IN_OTHER_WORDS = {"the same", "the same of list_keys", "it names one of its own as well"}
"""Rows that the documentation words differently."""


def test_the_page_lists_every_difference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
    assert [reason for reason in OTHERWISE.values() if reason not in page and reason not in IN_OTHER_WORDS] == []


def answer(store: dist.Store, call: Call) -> Any:
    """Return the result of the call, or the type of its error."""
    name, *arguments = call
    try:
        found = getattr(store, name)(*arguments)
        return sorted(found) if name == "list_keys" else found
    except Exception as error:
        return WAITED if isinstance(error, WaitTimeout) else type(error)


def kept(store: dist.Store, name: str) -> bool:
    """Return whether the store keeps this part of the contract. A plain RuntimeError of FileStore is a time-out."""
    for call, expected in CONTRACT[name]:
        found = answer(store, call)
        if isinstance(store, dist.FileStore) and found is RuntimeError:
            found = WAITED
        if found != expected:
            return False
    return True


@pytest.mark.parametrize("name", CONTRACT)
@pytest.mark.parametrize("make", STORES, ids=lambda make: make.__name__)
def test_the_contract_of_a_store(make: Callable[[Path], dist.Store], name: str, tmp_path: Path) -> None:
    assert kept(make(tmp_path), name) == ((make.__name__, name) not in OTHERWISE)


def test_our_store_keeps_the_whole_contract() -> None:
    assert not [store for store, _ in OTHERWISE if store == "ours"]


@pytest.mark.parametrize("make", [tcp, ours, ours_with_a_prefix], ids=lambda make: make.__name__)
def test_the_error_of_a_wait_has_keys_and_duration(make: Callable[[Path], dist.Store], tmp_path: Path) -> None:
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 500ms, keys: /(some/)?x, /(some/)?y"):
        make(tmp_path).wait(["x", "y"])


def test_a_prefix_store_keeps_its_store_alive(tmp_path: Path) -> None:
    """torch keeps only the C++ part of a store alive."""
    prefixed = dist.PrefixStore("p", RunStore(tmp_path, SHORT))
    gc.collect()
    prefixed.set("a", "1")
    assert prefixed.get("a") == b"1"
    assert RunStore(tmp_path).get("p/a") == b"1"
    assert prefixed.delete_key("a") and prefixed.num_keys() == 0


def test_a_key_and_a_value_may_be_text_or_bytes(tmp_path: Path) -> None:
    store = RunStore(tmp_path, SHORT)
    store.set(b"a", b"1")
    assert store.get("a") == store.get(b"a") == b"1"
    assert store.add(b"n", 2) == 2 and store.check([b"a", "n"])
    with pytest.raises(WAITED, match="keys: /zz"):
        store.wait([b"zz"])


@pytest.mark.parametrize("make", [tcp, ours], ids=lambda make: make.__name__)
def test_the_helpers_of_torchs_agents_work_with_it(make: Callable[[Path], dist.Store], tmp_path: Path) -> None:
    check_helpers(make(tmp_path))


def check_helpers(store: dist.Store) -> None:
    """Call torch's helpers for stores as agents of one rank, and as one of two ranks that waits in vain."""
    with helpers.store_timeout(store, 60):
        assert store.timeout == LONG
    assert store.timeout == SHORT
    assert helpers.synchronize(store, b"mine", rank=0, world_size=1, key_prefix="data") == [b"mine"]
    assert helpers.get_all(store, 0, "data", 1) == [b"mine"]
    helpers.barrier(store, world_size=1, key_prefix="all")
    with pytest.raises(WAITED):
        helpers.barrier(store, world_size=2, key_prefix="more", barrier_timeout=0.1)


def test_a_clone_has_the_same_directory_and_time_out(tmp_path: Path) -> None:
    store = RunStore(tmp_path, SHORT)
    store.set("a", "1")
    assert store.clone().get("a") == b"1"
    assert store.clone().timeout == SHORT


def test_the_wait_for_a_late_value(tmp_path: Path) -> None:
    found: list[bytes] = []
    waiters = [
        threading.Thread(target=lambda: found.append(RunStore(tmp_path, LONG).get("late"))),
        threading.Thread(target=lambda: found.append(RunStore(tmp_path, LONG).queue_pop("queue"))),
    ]
    for waiter in waiters:
        waiter.start()
    RunStore(tmp_path).set("late", "1")
    RunStore(tmp_path).queue_push("queue", "2")
    for waiter in waiters:
        waiter.join(60)
    assert sorted(found) == [b"1", b"2"]


def turn(store: RunStore, number: int) -> None:
    """Execute every operation that changes the store, always on the same keys."""
    store.add("number", 1)
    store.set("word", f"{number:06}")
    store.multi_set(["one", "two"], [f"{number:06}", b"\xff"])
    store.compare_set("word", f"{number:06}", "found")
    store.append("text", "x")
    store.delete_key("text")
    store.queue_push("queue", "item")
    assert store.queue_pop("queue") == b"item"
    assert store.get("number") == str(number).encode()


def test_files_and_bytes_do_not_grow_with_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(history, "SETTLE_DELAY", 0.0)  # otherwise the versions of the last seconds are kept
    store, sizes = RunStore(tmp_path), list[tuple[int, int]]()
    for number in range(1, 301):
        turn(store, number)
        found = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
        sizes.append((len(found), sum(found)))
    keys = len(store.list_keys()) + 2  # and a deleted one, and the queue
    assert max(files for files, _ in sizes) <= keys * (2 * keyvalue._KEPT_VERSIONS + 1)
    assert max(bytes for _, bytes in sizes[100:]) <= 1.1 * max(bytes for _, bytes in sizes[:100])


PROCESSES, EACH = 4, 25


def crowd(directory: Path, rank: int) -> None:
    store = RunStore(directory, LONG)
    for number in range(EACH):
        store.add("sum", 1)
        store.append("letters", "abcd"[rank])
        store.queue_push("queue", f"{rank}.{number}")
    helpers.barrier(store, PROCESSES, "done")
    taken = [store.queue_pop("queue").decode() for _ in range(EACH)]
    store.append(f"taken {rank}", ",".join(taken))


@pytest.mark.slow
def test_operations_of_many_processes_are_exact(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=crowd, args=(tmp_path, rank)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    store = RunStore(tmp_path)
    assert store.get("sum") == b"100"
    assert sorted(store.get("letters").decode()) == sorted("abcd" * EACH)
    taken = [item for rank in range(PROCESSES) for item in store.get(f"taken {rank}").decode().split(",")]
    assert sorted(taken) == sorted(f"{rank}.{number}" for rank in range(PROCESSES) for number in range(EACH))


def reduce(directory: Path, rank: int, world_size: int) -> None:
    store = RunStore(directory, LONG)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    dist.barrier(dist.new_group([0, 1]))
    dist.destroy_process_group()
    store.set(f"result {rank}", str(total.item()))


@pytest.mark.slow
def test_process_groups_can_use_the_store(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=reduce, args=(tmp_path, rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert RunStore(tmp_path, SHORT).multi_get(["result 0", "result 1"]) == [b"3", b"3"]
