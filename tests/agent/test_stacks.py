"""The stacks of many workers are collected together. The clock is simulated, and the workers are no processes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcelastic.agent import stacks
from hpcelastic.agent.stacks import StackCollector
from hpcelastic.agent.worker import Worker
from tests.agent.test_watchdog import NoProcess

COUNT = 100
LINES = "Stack (most recent call first):\n", '  File "train.py", line 1 in work\n'


class Node:
    """A node with `COUNT` workers. ``answer`` is called with the number of a worker that is signalled."""

    def __init__(self) -> None:
        self.now, self.later = 0.0, list[tuple[float, int, str]]()
        self.collector = StackCollector(COUNT)
        self.workers = [Worker(i, i, NoProcess(), i, Path(), None) for i in range(COUNT)]
        self.answer: Callable[[int], None] = lambda worker: None

    def write(self, worker: int, *lines: str) -> None:
        with open(self.collector.variables[worker].partition(":")[2], "a") as memory:
            memory.writelines(lines)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.later and self.later[0][0] <= self.now:
            _, worker, line = self.later.pop(0)
            self.write(worker, line)

    def collect(self) -> list[str]:
        """Return the stacks of the workers, or why they are unknown."""
        found = self.collector.collect({worker: worker.pidfd for worker in self.workers})
        return [found[worker].text or found[worker].reason for worker in self.workers]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node()
    signals = SimpleNamespace(pidfd_send_signal=lambda worker, signum: made.answer(worker))
    monkeypatch.setattr(stacks, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep))
    monkeypatch.setattr(stacks, "signal", signals)
    monkeypatch.setattr(stacks, "_catches", lambda pid: True)
    yield made
    made.collector.close()


def test_many_workers_that_answer_take_as_long_as_one(node: Node) -> None:
    node.answer = lambda worker: node.write(worker, *LINES)
    assert node.collect() == ["".join(LINES)] * COUNT
    assert node.now < 2 * stacks._SETTLED


def test_a_worker_that_does_not_answer_delays_the_others_once(node: Node) -> None:
    node.answer = lambda worker: node.write(worker, *LINES) if worker % 2 else None
    assert node.collect() == ["it has not reacted to the signal", "".join(LINES)] * (COUNT // 2)
    assert node.now < stacks._ANSWER_TIMEOUT + stacks._SETTLED


def test_stacks_that_are_still_written_are_awaited(node: Node) -> None:
    node.answer = lambda worker: node.write(worker, LINES[0])
    pause = stacks._SETTLED / 2
    node.later = [((worker + 1) * pause, worker, LINES[1]) for worker in range(COUNT)]
    assert node.collect() == ["".join(LINES)] * COUNT
