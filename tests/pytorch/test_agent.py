"""torch's interface of agents: the behaviour that torch's own tests demand of LocalElasticAgent, and hpcelastic's more.

The cases are those of local_elastic_agent_test.py in the repository of PyTorch. They run with torch's agent and with
hpcelastic's, both with the rendezvous of the plug-in.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from hpcelastic.api.steering import drain
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.state import NodeState, Phase
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import eventually
from tests.ports import free_port
from tests.pytorch import entries
from tests.pytorch.agents import Job, Node, agent_of, job_in
from tests.pytorch.torch_agents import handler_of

pytestmark = pytest.mark.slow


@pytest.fixture(params=[pytest.param("torch", marks=pytest.mark.weekly), "hpcelastic"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    """A job of torch's agents, and one of hpcelastic's."""
    with job_in(request.param, tmp_path) as job:
        yield job


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Job]:
    with job_in("hpcelastic", tmp_path) as job:
        yield job


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory in which workers create files."""
    directory = tmp_path / "notes"
    directory.mkdir()
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Success


def test_workers_that_return_nothing_succeed(job: Job) -> None:
    (ended,) = job.run(Node(entries.passes, workers=2))
    assert (ended.values, ended.state) == ({0: None, 1: None}, WorkerState.SUCCEEDED)
    assert ended.ranks == [(0, 0, 0, 2, 2), (1, 1, 1, 2, 2)]


def test_values_are_returned_by_rank(job: Job) -> None:
    (ended,) = job.run(Node(entries.echoes, ("foo", "${local_rank}"), workers=2))
    assert ended.values == {0: (0, "foo", "0"), 1: (1, "foo", "1")}


def test_a_program_returns_nothing(job: Job, notes: Path) -> None:
    (ended,) = job.run(Node("touch", (f"{notes}/${{local_rank}}",), workers=2))
    assert not any(ended.values.values())
    assert names(notes) == {"0", "1"}


CONTRACT = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)


def test_workers_find_the_variables_of_torchrun(job: Job) -> None:
    (ended,) = job.run(Node(entries.environment, CONTRACT, role="trainer", more={"max_restarts": 2}))
    assert ended.values[0] == ["0", "0", "0", "trainer", "0", "1", "1", "1", "1", "0", "2", "r", "1"]


def test_variables_of_the_agent_reach_the_workers(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    (ended,) = job.run(Node(entries.environment, ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)))
    assert ended.values == {0: ["0"]}


def test_workers_find_the_address_and_the_port_of_the_spec(job: Job) -> None:
    master = {"master_addr": "localhost", "master_port": free_port()}
    (ended,) = job.run(Node(entries.environment, ("MASTER_ADDR", "MASTER_PORT"), more=master))
    assert ended.values == {0: ["localhost", str(master["master_port"])]}


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (1, 2, 3)], ids=["one node", "equal nodes", "unequal nodes"])
def test_workers_of_all_nodes_meet(sizes: tuple[int, ...], job: Job) -> None:
    ended = job.run(*(Node(entries.sums, workers=workers) for workers in sizes))
    world = sum(sizes)
    assert {rank: value for one in ended for rank, value in one.values.items()} == dict.fromkeys(
        range(world), sum(range(world))
    )


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"master": [2], "trainer": [1, 2]}, id="unequal nodes"),
        pytest.param({"master": [1], "trainer": [1, 1], "ps": [1]}, id="equal nodes"),
    ],
)
def test_ranks_are_consecutive_on_each_node_and_in_each_role(sizes: dict[str, list[int]], job: Job) -> None:
    nodes = [Node(entries.ranks, workers=size, role=role) for role, group in sizes.items() for size in group]
    ended = job.run(*nodes)
    world = sum(node.workers for node in nodes)
    assert sorted(rank for one in ended for rank in one.values) == list(range(world))
    for role, group in sizes.items():
        found = [one.values for one, node in zip(ended, nodes, strict=True) if node.role == role]
        assert sorted(ranks["ROLE_RANK"] for one in found for ranks in one.values()) == list(range(sum(group)))
    for one, node in zip(ended, nodes, strict=True):
        first, *_ = sorted(one.values)
        assert sorted(one.values) == list(range(first, first + node.workers))
        sizes_seen = {(r["WORLD_SIZE"], r["ROLE_WORLD_SIZE"], r["LOCAL_WORLD_SIZE"]) for r in one.values.values()}
        assert sizes_seen == {(world, sum(sizes[node.role]), node.workers)}
        reported = [(r["LOCAL_RANK"], r["RANK"], r["ROLE_RANK"], *s) for r in one.values.values() for s in [(world,)]]
        assert [ranks[:4] for ranks in one.ranks] == sorted(reported)


def test_nodes_have_the_ranks_that_the_static_rendezvous_gives_them_in_whatever_order_they_come(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the run is in ./runs
    port = free_port()

    def handler(number: int) -> StaticTCPRendezvous:  # the node that starts first has rank 1
        return StaticTCPRendezvous("localhost", port, 1 - number, 2, "r", 60)

    node = Node(entries.environment, ("GROUP_RANK",), more={"local_addr": "127.0.0.1"})
    ended = job.run(node, node, handler_of=handler)
    assert [one.values for one in ended] == [{1: ["1"]}, {0: ["0"]}]


def test_workers_of_two_roles_call_each_other(job: Job) -> None:
    ended, _ = job.run(
        Node(entries.calls_the_other, ("hello",), role="master"), Node(entries.answers_calls, role="worker")
    )
    assert [*ended.values.values()] == ["HELLO"]


@pytest.mark.parametrize("exit_barrier", [10.0, 0.0], ids=["within the exit barrier", "beyond the exit barrier"])
def test_nodes_may_succeed_at_different_times(exit_barrier: float, job: Job) -> None:
    ended = job.run(*(Node(entries.takes, (seconds,), exit_barrier=exit_barrier) for seconds in (0.0, 2.0)))
    assert [[*one.values.values()] for one in ended] == [[0.0], [2.0]]
    assert read_state(FileBackend(RunPaths(job.directory / "r"))).phase is Phase.SUCCEEDED


def test_the_death_of_an_agent_whose_workers_have_succeeded_fails_nobody(job: Job) -> None:
    run = RunPaths(job.directory / "r")
    handler = job.handlers(2, 2)
    early = job.start(Node(entries.passes, exit_barrier=100.0), handler)
    late = job.start(Node(entries.takes, (4.0,)), handler)
    eventually(lambda: run.leases.exists() and NodeState.SUCCEEDED in node_states(run))
    early.kill()
    assert [*late.ended().values.values()] == [4.0]
    assert read_state(FileBackend(run)).phase is Phase.SUCCEEDED


def node_states(run: RunPaths) -> list[NodeState]:
    return [lease.member.node_state for lease in read_leases(run.leases).values()]


def test_no_process_of_a_worker_is_left(job: Job, notes: Path) -> None:
    (ended,) = job.run(Node(entries.leaves_a_child, (str(notes),), workers=2))
    assert ended.values == {0: None, 1: None}
    assert len(names(notes)) == 2
    eventually(
        lambda: not any(Path("/proc", pid).exists() for pid in names(notes))
    )  # init reaps those that were killed


# Failures


def test_the_failure_has_the_exception_of_the_rank(job: Job) -> None:
    (ended,) = job.run(Node(entries.raises, workers=2))
    assert ended.result is not None and ended.result.is_failed()
    assert (ended.result.return_values, ended.state) == ({}, WorkerState.FAILED)
    rank, failure = next(iter(ended.result.failures.items()))
    assert (failure.local_rank, failure.exitcode, failure.pid > 0) == (rank, 1, True)
    assert failure.message["message"] == f"ArithmeticError: rank {rank} has diverged"  # type: ignore[index]  # as recorded
    assert failure.error_file_data["message"] == failure.message


def test_workers_start_as_often_as_restarts_allow(job: Job, notes: Path) -> None:
    (ended,) = job.run(Node(entries.raises_on_odd_ranks, (str(notes),), workers=2, more={"max_restarts": 2}))
    assert ended.result is not None and ended.result.is_failed()
    assert ended.state is WorkerState.FAILED
    assert {name.partition(".")[0] for name in names(notes)} == {"0", "1", "2"}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_failure_names_the_signal_that_killed_a_rank(rank: int, job: Job) -> None:
    (ended,) = job.run(Node(entries.is_killed_on, (rank, signal.SIGKILL), workers=2))
    assert ended.result is not None and ended.result.is_failed()
    (failure,) = ended.result.failures.values()
    assert ([*ended.result.failures], failure.exitcode, failure.local_rank) == ([rank], -signal.SIGKILL, rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_restart_after_the_death_of_a_rank_succeeds(rank: int, job: Job) -> None:
    (ended,) = job.run(Node(entries.is_killed_once, (rank,), workers=2, more={"max_restarts": 3}))
    assert ended.values == {0: 0, 1: 1}


def test_a_failure_ends_the_agents_of_all_nodes(ours: Job) -> None:
    ended = ours.run(*2 * [Node(entries.raises_on, (1,), exit_barrier=300.0)])
    assert [one.state for one in ended] == 2 * [WorkerState.FAILED]
    for one in ended:  # torch's agent reports the failures of its own workers only
        assert one.result is not None and [*one.result.failures] == [1]


# Nodes that come and go


def test_a_node_takes_the_place_of_one_whose_agent_was_killed(job: Job, notes: Path, tmp_path: Path) -> None:
    node = Node(entries.sums, (str(notes), str(tmp_path / "go")), more={"max_restarts": 2})
    handler = job.handlers(2, 2)
    stays, dies = (job.start(node, handler) for _ in range(2))
    eventually(lambda: names(notes) == {"2.0", "2.1"})
    dies.kill()
    for path in notes.iterdir():
        path.unlink()
    replaces = job.start(node, handler)
    eventually(lambda: names(notes) == {"2.0", "2.1"})
    (tmp_path / "go").touch()
    assert sorted([*stays.ended().values, *replaces.ended().values]) == [0, 1]


def test_the_run_goes_on_without_a_node_whose_agent_was_killed(job: Job, notes: Path, tmp_path: Path) -> None:
    node = Node(entries.sums, (str(notes), str(tmp_path / "go")), more={"max_restarts": 2})
    handler = job.handlers(1, 2)
    stays, dies = (job.start(node, handler) for _ in range(2))
    eventually(lambda: {"2.0", "2.1"} <= names(notes))
    for path in notes.iterdir():
        path.unlink()
    dies.kill()
    eventually(lambda: "1.0" in names(notes))
    (tmp_path / "go").touch()
    assert stays.ended().values == {0: 0}


# hpcelastic's agent only


Start = Callable[..., Any]


@pytest.fixture
def agent(tmp_path: Path) -> Start:
    """Return a function that creates an agent of hpcelastic in this process."""

    def create(node: Node, nodes: int = 1, **conf: Any) -> Any:
        return agent_of("hpcelastic", node, handler_of(tmp_path, nodes, **conf), str(tmp_path / "logs"))

    return create


def test_the_worker_group_is_known_while_the_workers_run(agent: Start, tmp_path: Path, notes: Path) -> None:
    waiting = agent(Node(entries.waits, (str(notes),), workers=2, role="trainer"))
    assert waiting.get_worker_group().state is WorkerState.INIT
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(waiting.run()))
    thread.start()
    eventually(lambda: len(names(notes)) == 2 and all(path.read_text() for path in notes.iterdir()))
    group = waiting.get_worker_group()
    place = (group.state, group.group_rank, group.group_world_size, group.master_addr)
    assert place == (WorkerState.HEALTHY, 0, 1, "127.0.0.1")
    assert [str(worker.id) for worker in group.workers] == [(notes / str(rank)).read_text() for rank in range(2)]
    assert read_state(FileBackend(RunPaths(tmp_path / "r"))).participants[0].port == group.master_port
    group.workers.clear()
    assert len(waiting.get_worker_group().workers) == 2  # it was a copy
    drain(RunReader(RunPaths(tmp_path / "r")), [read_state(FileBackend(RunPaths(tmp_path / "r"))).participants[0].name])
    thread.join(60)
    (result,) = results
    assert (result.state, result.return_values, result.is_failed()) == (WorkerState.STOPPED, {}, False)
    assert waiting.get_worker_group().state is WorkerState.STOPPED


def test_a_time_out_of_the_rendezvous_is_raised_as_torchs(agent: Start) -> None:
    lonely = agent(Node(entries.passes), nodes=2, join_timeout=1)
    with pytest.raises(RendezvousTimeoutError):
        lonely.run()
    assert lonely.get_worker_group().state is WorkerState.INIT


def test_a_signal_stops_the_workers_and_is_raised(agent: Start, notes: Path) -> None:
    waiting = agent(Node(entries.waits, (str(notes),)))

    def interrupt() -> None:
        eventually(lambda: "0" in names(notes))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SignalException):
        waiting.run()
    thread.join()
    assert waiting.get_worker_group().state is WorkerState.STOPPED


def test_a_run_that_has_ended_is_refused_with_the_error_of_torch(ours: Job) -> None:
    ours.run(Node(entries.passes))
    (again,) = ours.run(Node(entries.passes))
    assert again.error == "RendezvousClosedError"
