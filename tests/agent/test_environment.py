from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.environment import RunFacts, worker_environment
from hpcelastic.agent.guard_main import MARKER
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths

# Three nodes with 2, 4 and 1 workers. This is the second one, in round 5.
PART = Assignment(5, 1, 3, 2, 4, 7, "n0.net", 29500, "", 2, 7)
RUN = RunFacts(RunPaths(Path("/runs/r")), "r", "n1@0-ab", 3, "/proc/9/fd/4", "ib0")

CONTRACT = {
    "RANK": "4",
    "LOCAL_RANK": "2",
    "GROUP_RANK": "1",
    "ROLE_RANK": "4",
    "ROLE_NAME": "default",
    "WORLD_SIZE": "7",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_WORLD_SIZE": "7",
    "MASTER_ADDR": "n0.net",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "4",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "r",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/runs/r/logs/round-0005/rank-00004.error.json",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
    "HPCELASTIC_ROUND": "5",
    "HPCELASTIC_TOKEN": "5",
    "HPCELASTIC_LOCAL_RANK": "2",
    "HPCELASTIC_RUN_DIR": "/runs/r",
    "HPCELASTIC_RUN_ID": "r",
    "HPCELASTIC_NODE": "n1",
    "HPCELASTIC_CONTROL_PAGE": "/proc/9/fd/4",
    "HPCELASTIC_INTERFACE": "ib0",
    MARKER: "n1@0-ab",
}


def environment(
    base: dict[str, str] | None = None, part: Assignment = PART, local_rank: int = 2, **extra: str
) -> dict[str, str]:
    return worker_environment(base or {}, part, local_rank, RUN, extra)


@pytest.mark.parametrize(("name", "value"), CONTRACT.items(), ids=CONTRACT.keys())
def test_the_variables_of_a_worker(name: str, value: str) -> None:
    assert environment()[name] == value


def test_no_other_variable_is_added() -> None:
    assert environment({"PATH": "/bin"}) == {**CONTRACT, "PATH": "/bin"}


def test_all_names_of_torch_are_set() -> None:
    """torch's agent sets these names for its workers, in `LocalElasticAgent._start_workers`."""
    source = Path(pytest.importorskip("importlib.util").find_spec("torch").origin).parent
    text = (source / "distributed/elastic/agent/server/local_elastic_agent.py").read_text()
    block = text.partition("worker_env = {")[2].partition("}\n")[0]
    theirs = {line.split('"')[1] for line in block.splitlines() if line.strip().startswith('"') and '": ' in line}
    assert {"RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} <= theirs
    assert theirs <= set(CONTRACT)


def test_ranks_continue_from_the_first_of_the_node() -> None:
    ranks = [(environment(local_rank=i)["RANK"], environment(local_rank=i)["LOCAL_RANK"]) for i in range(4)]
    assert ranks == [("2", "0"), ("3", "1"), ("4", "2"), ("5", "3")]


def test_the_restart_count_is_the_number_of_the_round_from_0() -> None:
    assert environment(part=replace(PART, round=1))["TORCHELASTIC_RESTART_COUNT"] == "0"


OVERRIDES = {
    "the rank of an outer run is removed": ({"RANK": "99", "MASTER_PORT": "1"}, {}, "RANK", "4"),
    "the marker of an outer run is removed": ({MARKER: "outer@0"}, {}, MARKER, "n1@0-ab"),
    "NCCL's error handling of the user": (
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        {},
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "3",
    ),
    "number of threads of the user": ({"OMP_NUM_THREADS": "8"}, {}, "OMP_NUM_THREADS", "8"),
    "the job file overrides the environment": ({"A": "base"}, {"A": "extra"}, "A", "extra"),
    "the job file overrides our defaults": ({}, {"OMP_NUM_THREADS": "6"}, "OMP_NUM_THREADS", "6"),
}


@pytest.mark.parametrize(("base", "extra", "name", "value"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_precedence(base: dict[str, str], extra: dict[str, str], name: str, value: str) -> None:
    assert environment(base, **extra)[name] == value


def test_a_single_worker_may_use_all_threads() -> None:
    assert "OMP_NUM_THREADS" not in environment(part=replace(PART, local_world_size=1), local_rank=0)


def test_the_environment_of_the_agent_is_not_changed() -> None:
    base = {"PATH": "/bin"}
    environment(base)
    assert base == {"PATH": "/bin"}


def test_roles_are_counted_separately() -> None:
    part = replace(PART, role="reader", role_first_rank=1, role_world_size=6)
    found = environment(part=part)
    assert [found[name] for name in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "RANK")] == ["reader", "3", "6", "4"]


VIRTUAL = {
    "GPUs given by SLURM": ({"CUDA_VISIBLE_DEVICES": "4,5, 7"}, {}, "7"),
    "all GPUs of the machine": ({}, {}, "2"),
    "GPUs in the job file": ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1,2,3"}, "3"),
}


@pytest.mark.parametrize(("base", "extra", "gpu"), VIRTUAL.values(), ids=VIRTUAL)
def test_each_worker_may_see_only_its_gpu(base: dict[str, str], extra: dict[str, str], gpu: str) -> None:
    found = worker_environment(base, PART, 2, replace(RUN, virtual_local_rank=True), extra)
    assert [found[name] for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "HPCELASTIC_LOCAL_RANK")] == [gpu, "0", "2"]


def test_workers_find_the_pipe_of_the_timers_that_the_agent_serves() -> None:
    theirs = {"TORCHELASTIC_TIMER_FILE": "/tmp/outer"}
    assert environment(theirs)["TORCHELASTIC_TIMER_FILE"] == "/tmp/outer"
    found = worker_environment(theirs, PART, 0, replace(RUN, timer_file="/tmp/ours"), {})
    assert found["TORCHELASTIC_TIMER_FILE"] == "/tmp/ours"


def test_forwarded_signals_are_listed() -> None:
    found = worker_environment({}, PART, 0, replace(RUN, forwarded_signals=("SIGUSR1", "SIGHUP")), {})
    assert found["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
