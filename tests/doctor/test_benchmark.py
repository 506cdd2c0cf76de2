"""The benchmark of nodes: with simulated nodes, of which some are slow, and with processes that measure."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.doctor.benchmark import MeasurerProcess, NodeSpeed, measure_speeds, schedule
from hpcelastic.doctor.coordination import PREFIX, Coordination, Members
from hpcelastic.doctor.speeds import Baseline, judge_speeds
from hpcelastic.errors import StoreError
from hpcelastic.worker.node_benchmark import COMMAND

NODES = 64
SLOW_NODE, SLOW_PORT, BROKEN = 17, 40, 51
LINK = (0, 63)
"""A pair of the first round."""


class Network:
    """Simulated nodes. The port of a pair is the rank of the node that serves it."""

    def speed(self, one: int, other: int) -> dict[str, Any]:
        slow = SLOW_PORT in (one, other) or (min(one, other), max(one, other)) == LINK
        return {"latency": 2e-4, "bandwidth": 1e9 if slow else 1e10, "gather": None}


class SimulatedNode:
    """A `Measurer` of a simulated node. Its computation takes a moment."""

    def __init__(self, network: Network, rank: int, partners: dict[int, int]) -> None:
        self._network, self._rank, self._partners = network, rank, partners
        self._answers: list[Any] = []

    def ask(self, command: dict[str, Any]) -> None:
        time.sleep(0.05)
        if command["do"] == "compute":
            if self._rank == BROKEN:
                raise StoreError("no driver")
            flops = 5e11 if self._rank == SLOW_NODE else 1e12
            self._answers = [[{"device": "processors", "flops": flops, "memory": 1e11}]]
        elif command["do"] == "serve":
            number = len([*filter(lambda each: each == self._rank, self._partners.values())])
            port = 1000 * (number + 1) + self._rank
            self._partners[port] = self._rank
            self._answers = [{"port": port}, None]
        else:
            self._answers = [self._network.speed(self._rank, self._partners[command["port"]])]

    def answer(self) -> Any:
        answer = self._answers.pop(0)
        return {"latency": 2e-4, "bandwidth": 1e10, "gather": None} if answer is None else answer

    def close(self) -> None: ...


def test_each_planted_slow_node_and_link_of_64_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcelastic.doctor.benchmark._measure_filesystem", lambda directory: 1e9)  # they share one disk
    found: list[list[NodeSpeed] | None] = [None] * NODES
    network, ports = Network(), dict[int, int]()

    def member(rank: int) -> None:
        coordination = Coordination(tmp_path, Members(NODES, rank, "b"), 60.0, lambda line: None)
        coordination.open()
        node = SimulatedNode(network, rank, ports)
        found[rank] = measure_speeds(coordination, f"n{rank}", "127.0.0.1", tmp_path, node, lambda line: None)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1:] == [None] * (NODES - 1) and found[0] is not None
    report = judge_speeds(found[0], Baseline())
    assert {*report.slow} == {f"n{SLOW_NODE}", f"n{SLOW_PORT}", f"n{BROKEN}"}
    assert [one.result for one in report.findings if one.result.startswith("between")] == [
        "between n0 and n63: bandwidth 1 GB/s, 10% of the median"
    ]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".benchmark")]


@dataclass
class Store:
    """A store that a node serves for a pair. It closes before the partner connects that still measures another pair."""

    server: int
    closed: bool
    measured: threading.Event = field(default_factory=threading.Event)


class PairOfThree:
    """A `Measurer` of one of three nodes, with the ``stores`` of all. Any two pairs have one node in common."""

    def __init__(self, rank: int, stores: list[Store], answers_late: Callable[[], object]) -> None:
        self._rank, self._stores, self._answers_late = rank, stores, answers_late
        self._answers: list[Callable[[], Any]] = []

    def ask(self, command: dict[str, Any]) -> None:
        if command["do"] == "compute":
            self._answers = [list]
        elif command["do"] == "serve":
            store = Store(self._rank, closed=not all(other.measured.is_set() for other in self._stores))
            self._stores.append(store)
            self._answers = [partial(dict, port=len(self._stores) - 1), partial(self._measure, store)]
        else:
            self._answers = [partial(self._connect, self._stores[command["port"]])]

    def answer(self) -> Any:
        return self._answers.pop(0)()

    def _connect(self, store: Store) -> dict[str, Any]:
        self._answers_late()
        store.measured.set()
        return self._measure(store)

    def _measure(self, store: Store) -> dict[str, Any]:
        assert store.measured.wait(60)
        if store.closed:
            raise StoreError("the store has closed")
        return {"latency": 2e-4, "bandwidth": 1e10, "gather": None}

    def close(self) -> None: ...


def test_a_node_that_answers_late_spoils_no_pair_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first partner is late for the next pair, whose store must not be served before."""
    monkeypatch.setattr("hpcelastic.doctor.benchmark._measure_filesystem", lambda directory: 1e9)
    assert schedule(3)[:2] == [[None, 2, 1], [1, 0, None]]
    stores, found = list[Store](), list[NodeSpeed]()

    def until_node_0_is_ready_for_the_next_pair() -> None:
        ready = tmp_path / f"{PREFIX}b" / "steps" / "ready-1.0"
        while not (ready.exists() or any(store.server == 0 for store in stores)):
            time.sleep(0.01)

    def member(rank: int) -> None:
        coordination = Coordination(tmp_path, Members(3, rank, "b"), 60.0, lambda line: None)
        coordination.open()
        late = until_node_0_is_ready_for_the_next_pair if rank == 2 else lambda: None
        node = PairOfThree(rank, stores, late)
        found.extend(measure_speeds(coordination, f"n{rank}", "a", tmp_path, node, lambda line: None) or [])

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(pair.other, pair.error) for pair in found[0].pairs] == [(1, ""), (2, "")]
    assert [(pair.other, pair.error) for pair in found[1].pairs] == [(2, ""), (0, "")]


@pytest.mark.slow
def test_processes_measure_a_node_and_a_connection() -> None:
    one, other = (MeasurerProcess(COMMAND, {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) for _ in range(2))
    try:
        one.ask({"do": "compute"})
        (device,) = one.answer()
        assert device["flops"] > 0 and device["memory"] > 0
        one.ask({"do": "serve", "address": "127.0.0.1"})
        other.ask({"do": "connect", "address": "127.0.0.1", **one.answer()})
        for process in (one, other):
            speed = process.answer()
            assert speed["latency"] > 0 and speed["bandwidth"] > 0
        one.ask({"do": "connect", "address": "127.0.0.1", "port": "no port"})
        with pytest.raises(StoreError, match="TypeError"):
            one.answer()
    finally:
        one.close()
        other.close()


def test_a_process_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcelastic.doctor.benchmark.ANSWER_TIMEOUT", 0.05)
    silent = MeasurerProcess((sys.executable, "-S", "-c", "import time; time.sleep(1000)"), os.environ)
    silent.ask({"do": "compute"})
    with pytest.raises(StoreError, match="no answer within"):
        silent.answer()
    silent.close()


def test_the_process_prints_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, input='{"do": "nothing"}\n', capture_output=True, text=True, check=True)
    assert done.stdout == '{"error": "KeyError: \'nothing\'"}\n'
