"""The store of torchrun's agents: they get their ranks from each other, also if some never enter a round that ends."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from hpcelastic.pytorch.agent_store import AgentRound, AgentStore

WORKERS = 2
Ranks = list[tuple[int, int]]


class Agents:
    """Agents of one round. Each asks for the ranks of its workers as torch's does, in a thread of its own."""

    def __init__(self, directory: Path, count: int, pool: ThreadPoolExecutor) -> None:
        self._directory, self._count, self._pool = directory, count, pool
        self.ended = threading.Event()
        self.successes: list[int] = []

    def store(self, group_rank: int) -> AgentStore:
        round = AgentRound(group_rank, self.ended.is_set, lambda: self.successes.append(group_rank))
        return AgentStore(self._directory, round)

    def enter(self, group_rank: int) -> "Future[Ranks]":
        return self._pool.submit(self._ranks, group_rank)

    def _ranks(self, group_rank: int) -> Ranks:
        spec: Any = SimpleNamespace(role="trainer", local_world_size=WORKERS)
        agent: Any = SimpleNamespace()
        assign = SimpleElasticAgent._assign_worker_ranks
        workers = assign(agent, self.store(group_rank), group_rank, self._count, spec)
        assert [worker.local_rank for worker in workers] == [0, 1]
        return [(worker.global_rank, worker.world_size) for worker in workers]


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(4) as made:
        yield made


def test_all_agents_of_a_round_get_their_ranks(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    agents = Agents(tmp_path, 2, pool)
    found = [agents.enter(rank) for rank in (1, 0)]
    assert [each.result(30) for each in found] == [[(2, 4), (3, 4)], [(0, 4), (1, 4)]]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_agent_does_not_wait_for_others_once_the_round_has_ended(
    rank: int, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """A third node had joined at once, and the other agents have never seen the round."""
    agents = Agents(tmp_path, 3, pool)
    found = agents.enter(rank)
    with pytest.raises(TimeoutError):
        found.result(0.5)
    agents.ended.set()
    assert len(found.result(30)) == WORKERS


def test_a_wait_for_anything_else_goes_on_after_the_end_of_the_round(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    agents = Agents(tmp_path, 2, pool)
    agents.ended.set()
    store = agents.store(0)
    waits = pool.submit(store.get, "key of a user")
    with pytest.raises(TimeoutError):
        waits.result(0.5)
    store.set("key of a user", "value")
    assert waits.result(30) == b"value"


def test_an_agent_in_the_exit_barrier_has_succeeded(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    agents = Agents(tmp_path, 2, pool)
    agents.store(0).add("another key", 1)
    assert agents.successes == []
    dist.PrefixStore("torchelastic/agent", agents.store(1)).add("terminal_state/last", 1)
    assert agents.successes == [1]
