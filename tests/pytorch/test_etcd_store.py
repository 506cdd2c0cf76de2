"""`EtcdStore`: the contract of torch's stores over both versions of etcd, and what torch's own EtcdStore promises."""

import gc
import multiprocessing
import secrets
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.utils import store as helpers

from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.pytorch import EtcdClient, EtcdStore
from tests.cli.shell import eventually
from tests.pytorch.test_store import CONTRACT, EACH, LONG, PROCESSES, SHORT, check_helpers, kept


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def client(request: pytest.FixtureRequest, etcd: EtcdServer) -> EtcdClient:
    return EtcdClient(etcd.endpoint, request.param)


@pytest.fixture
def prefix() -> str:
    return f"/torchelastic/p2p/{secrets.token_hex(6)}"


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract(client: EtcdClient, prefix: str, name: str) -> None:
    assert kept(EtcdStore(client, prefix, SHORT), name)


def test_a_prefix_stands_before_its_keys(client: EtcdClient, prefix: str) -> None:
    prefixed = dist.PrefixStore("p", EtcdStore(client, prefix, SHORT))
    gc.collect()  # torch keeps only the C++ part of a store alive
    assert prefixed.add("n", 2) == 2
    assert EtcdStore(client, prefix).get("p/n") == b"2"
    assert prefixed.delete_key("n") and prefixed.num_keys() == 0


# What torch's own EtcdStore promises


def test_a_key_and_a_value_may_be_text_or_bytes(client: EtcdClient, prefix: str) -> None:
    store = EtcdStore(client, prefix, SHORT)
    store.set(b"a", "1")
    store.set("b", b"\x00\xff")
    assert (store.get("a"), store.get(b"b")) == (b"1", b"\x00\xff")
    assert store.check([b"a", "b"])
    assert store.add(b"n", 1) == 1
    assert sorted(store.list_keys()) == ["a", "b", "n"]


def test_a_key_that_comes_late_is_waited_for(client: EtcdClient, prefix: str) -> None:
    found: list[bytes] = []
    waiter = threading.Thread(target=lambda: found.append(EtcdStore(client, prefix, LONG).get("late")))
    waiter.start()
    EtcdStore(client, prefix).set("late", "1")
    waiter.join(60)
    assert found == [b"1"]


@pytest.mark.parametrize("kind", [LookupError, dist.DistStoreError])
def test_a_wait_in_vain_raises_what_its_callers_expect(client: EtcdClient, prefix: str, kind: type[Exception]) -> None:
    store = EtcdStore(client, prefix, SHORT)
    store.set("there", "1")
    for call in (lambda: store.get("zz"), lambda: store.wait(["there", "zz"]), lambda: store.wait(["zz"], SHORT)):
        with pytest.raises(kind, match=r"wait timeout after 500ms, keys: /.*zz"):
            call()


def test_a_wait_may_have_a_time_out_of_its_own(client: EtcdClient, prefix: str) -> None:
    with pytest.raises(LookupError, match="after 20ms"):
        EtcdStore(client, prefix, LONG).wait(["zz"], timedelta(milliseconds=20))


def test_the_time_out_can_be_set(client: EtcdClient, prefix: str) -> None:
    store = EtcdStore(client, prefix)
    assert store.timeout == timedelta(seconds=300), "that of torch's stores"
    store.set_timeout(timedelta(milliseconds=20))
    assert store.timeout == timedelta(milliseconds=20)
    with pytest.raises(LookupError, match="after 20ms"):
        store.get("zz")


def test_a_slash_at_the_end_of_the_prefix_makes_no_difference(client: EtcdClient, prefix: str) -> None:
    EtcdStore(client, f"{prefix}/").set("a", "1")
    assert EtcdStore(client, prefix, SHORT).get("a") == b"1"


def test_stores_with_other_prefixes_are_other_stores(client: EtcdClient, prefix: str) -> None:
    EtcdStore(client, prefix).set("a", "1")
    assert not EtcdStore(client, f"{prefix}x").check(["a"])
    assert EtcdStore(client, f"{prefix}x").num_keys() == 0


def test_a_clone_has_the_same_keys_and_time_out(client: EtcdClient, prefix: str) -> None:
    store = EtcdStore(client, prefix, SHORT)
    store.set("a", "1")
    assert store.clone().get("a") == b"1"
    assert store.clone().timeout == SHORT


def test_the_helpers_of_torchs_agents_work_with_it(client: EtcdClient, prefix: str) -> None:
    check_helpers(EtcdStore(client, prefix, SHORT))


# Wrong inputs


def test_an_endpoint_is_enough(etcd: EtcdServer, prefix: str) -> None:
    store = EtcdStore(etcd.endpoint, prefix, SHORT)
    store.set("a", "1")
    assert EtcdStore(EtcdClient(etcd.endpoint), prefix).get("a") == b"1"
    assert EtcdClient(etcd.endpoint).version.count(".") == 2


def test_no_server_is_an_error(prefix: str) -> None:
    with pytest.raises(StoreError, match=r"etcd at 127\.0\.0\.1:1 does not answer"):
        EtcdStore("127.0.0.1:1", prefix)
    with pytest.raises(StoreError, match=r"etcd at 127\.0\.0\.1:1 does not answer"):
        _ = EtcdClient("127.0.0.1:1").version


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("n1", ""), "etcd_store_prefix is empty"),
        (("n1", "/"), "etcd_store_prefix is empty"),
        (("n1", "p", None, timedelta(0)), "ttl is 0:00:00; it must be at least 0:00:01, or None"),
        (("ftp://n1", "p"), "EtcdClient.endpoint has 'ftp://n1'; write HOST:PORT"),
        ((EtcdClient("n1", cacert="/no/ca.pem"), "p"), "EtcdClient.cacert /no/ca.pem: can't be used for TLS"),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=words):
        EtcdStore(*arguments)


def test_a_wrong_version_is_named() -> None:
    with pytest.raises(ValueError, match=r"EtcdClient\.api is 1; the versions of etcd's interface are 2 and 3"):
        EtcdClient("n1", 1)


# Lifetime

WRITER = """\
import sys, datetime
from hpcelastic.pytorch import EtcdClient, EtcdStore
store = EtcdStore(EtcdClient(sys.argv[1], int(sys.argv[2])), sys.argv[3], ttl=datetime.timedelta(seconds=5))
store.set("a", "1")
store.queue_push("q", "1")
"""


@pytest.mark.slow
def test_keys_outlive_their_writer_as_long_as_a_process_has_the_store_open(client: EtcdClient, prefix: str) -> None:
    arguments = [client.endpoint, str(client.api), prefix]
    reader = [sys.executable, "-c", f"{WRITER}import time; time.sleep(1000)", *arguments]
    with subprocess.Popen(reader) as keeper:
        unkept = EtcdStore(client, prefix, LONG, ttl=None)
        unkept.wait(["a", "q"])
        time.sleep(8)
        assert unkept.check(["a", "q"])
        keeper.kill()
    eventually(lambda: unkept.num_keys() == 0 and unkept.queue_len("q") == 0)


# Several processes


def crowd(client: EtcdClient, prefix: str, rank: int) -> None:
    store = EtcdStore(client, prefix, LONG)
    for number in range(EACH):
        store.add("sum", 1)
        store.append("letters", "abcd"[rank])
        store.queue_push("queue", f"{rank}.{number}")
    helpers.barrier(store, PROCESSES, "done")
    taken = [store.queue_pop("queue").decode() for _ in range(EACH)]
    store.append(f"taken {rank}", ",".join(taken))


@pytest.mark.slow
def test_operations_of_many_processes_are_exact(client: EtcdClient, prefix: str) -> None:
    run_processes([(crowd, (client, prefix, rank)) for rank in range(PROCESSES)])
    store = EtcdStore(client, prefix, SHORT)
    assert store.get("sum") == b"100"
    assert sorted(store.get("letters").decode()) == sorted("abcd" * EACH)
    taken = [item for rank in range(PROCESSES) for item in store.get(f"taken {rank}").decode().split(",")]
    assert sorted(taken) == sorted(f"{rank}.{number}" for rank in range(PROCESSES) for number in range(EACH))


def reduce(client: EtcdClient, prefix: str, rank: int, world_size: int) -> None:
    store = EtcdStore(client, prefix, LONG)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    dist.barrier(dist.new_group([0, 1]))
    dist.destroy_process_group()
    store.set(f"result {rank}", str(total.item()))


@pytest.mark.slow
def test_workers_meet_by_it(client: EtcdClient, prefix: str) -> None:
    run_processes([(reduce, (client, prefix, rank, 2)) for rank in range(2)])
    assert EtcdStore(client, prefix, SHORT).multi_get(["result 0", "result 1"]) == [b"3", b"3"]


def run_processes(calls: list[tuple[Any, tuple[Any, ...]]]) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=function, args=arguments) for function, arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(calls)
