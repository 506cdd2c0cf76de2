"""The numbers of collectives that a worker copies to memory of its agent."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.worker import collective_watch
from hpcelastic.worker.collective_watch import (
    MAX_GROUPS,
    CollectiveWatch,
    GroupCount,
    Sampler,
    Samples,
    read,
    read_samples,
    write,
)

COUNTS = [GroupCount("0", "default_pg", 8, 4711), GroupCount("17", "mesh_tp", 2, 3)]


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("test", 0)
    yield fd
    os.close(fd)


def test_what_is_written_is_read(memory: int) -> None:
    assert read(memory, 3) == ()
    write(memory, 3, COUNTS)
    assert read(memory, 3) == tuple(COUNTS)
    assert read(memory, 4) == ()
    write(memory, 4, COUNTS[1:])
    assert read(memory, 4) == tuple(COUNTS[1:])


def test_long_names_are_cut_and_surplus_groups_are_left_out(memory: int) -> None:
    write(memory, 3, [GroupCount("n" * 100, "é" * 100, 2, 1)] * (MAX_GROUPS + 5))
    found = read(memory, 3)
    assert len(found) == MAX_GROUPS and found[0].name == "n" * 48 and found[0].description == "é" * 16


def test_a_row_that_is_half_written_is_left_out(memory: int) -> None:
    write(memory, 3, COUNTS)
    os.pwrite(memory, b"\x01", collective_watch._HEADER.size + 48 + 32 + 8)  # in the first count
    assert read(memory, 3) == tuple(COUNTS[1:])
    os.ftruncate(memory, collective_watch._HEADER.size + 7)
    assert read(memory, 3) == ()


class Group:
    """A process group of torch, as far as it is used."""

    def __init__(self, name: str, begun: int | None) -> None:
        self.group_name, self.group_desc, self._begun = name, "purpose", begun

    def size(self) -> int:
        return 2

    def _get_sequence_number_for_group(self) -> int:
        if self._begun is None:
            raise RuntimeError("this backend does not count")
        self._begun += 1
        return self._begun


def test_the_thread_starts_with_the_first_group_and_copies_the_newest_numbers(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_watch, "INTERVAL", 0.01)
    monkeypatch.setenv("HPCELASTIC_ROUND", "3")
    groups: dict[Any, None] = {}

    def create(group: Group) -> Group:
        groups[group] = None
        return group

    c10d = SimpleNamespace(_new_process_group_helper=create, _world=SimpleNamespace(pg_map=groups))
    watch = CollectiveWatch(os.dup(memory), c10d)
    threads = threading.active_count()
    assert read(memory, 3) == ()
    made = c10d._new_process_group_helper(Group("0", 5))
    assert isinstance(made, Group) and threading.active_count() == threads + 1
    eventually(lambda: bool(read(memory, 3)) and read(memory, 3)[0].begun > 7)
    c10d._new_process_group_helper(Group("1", None))
    c10d._new_process_group_helper(Group("2", 50))
    assert threading.active_count() == threads + 1
    eventually(lambda: [count.name for count in read(memory, 3)] == ["0", "2"])
    groups.clear()  # the groups are destroyed
    eventually(lambda: read(memory, 3) == ())
    watch._end()  # as at the end of the process, in which the thread must not call torch any more
    assert threading.active_count() == threads


def test_samples_are_those_of_the_round(memory: int) -> None:
    assert read_samples(memory, 3) == Samples()
    write(memory, 3, COUNTS, Samples(12.5, 250, 3.25))
    assert read_samples(memory, 3) == Samples(12.5, 250, 3.25) and read(memory, 3) == tuple(COUNTS)
    assert read_samples(memory, 4) == Samples()


def sleep_in(file: str, seconds: float) -> None:
    """Sleep in a function that seems to be in ``file``, below a function of this file."""
    code = compile("def wait(sleep):\n    sleep()\n", file, "exec")
    scope: dict[str, Any] = {}
    exec(code, scope)
    scope["wait"](lambda: time.sleep(seconds))


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        pytest.param(lambda: sleep_in("/x/torch/distributed/distributed_c10d.py", 0.3), True, id="in a collective"),
        pytest.param(lambda: sleep_in("/x/hpcelastic/training/stop.py", 0.3), True, id="in the vote about a stop"),
        pytest.param(lambda: time.sleep(0.3), False, id="in the user's code"),
        pytest.param(lambda: sleep_in("/x/torch/autograd/graph.py", 0.3), False, id="in a hook of the backward pass"),
        pytest.param(lambda: spin(0.3), False, id="at work"),
    ],
)
def test_the_sampler_tells_waiting_from_work(act: Callable[[], None], waits: bool) -> None:
    samples, done = Samples(), threading.Event()

    def sample() -> None:
        nonlocal samples
        sampler = Sampler()
        while not done.is_set():
            sampler.wait(done)
            sampler.sample()
        samples = sampler.samples

    thread = threading.Thread(target=sample)
    thread.start()
    act()
    done.set()
    thread.join()
    assert samples.number >= 1 and samples.seconds > 0
    assert samples.waited > 0.5 * samples.seconds if waits else samples.waited == 0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
