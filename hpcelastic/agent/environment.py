"""The environment of a worker: the variables of torchrun, and those of this package.

These functions have no side effects. Source of torchrun's variables:
torch/distributed/elastic/agent/server/local_elastic_agent.py and the page "torchrun (Elastic Launch)" of PyTorch's
documentation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.guard_main import LOCAL_RANK, MARKER
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.state import name_of
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker.collective_watch import VARIABLE as COLLECTIVES

ROLE = "default"
"""Role of workers without a role of their own."""

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
"""The environment variable with the path of the pipe for `hpcelastic.agent.file_timers`."""

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that torchrun handles by default."""


@dataclass(frozen=True)
class RunFacts:
    """Facts of the run in the workers' environment. They are the same in every round."""

    paths: RunPaths
    run_id: str
    node: str
    max_restarts: int
    control_page: str = ""
    """Name of the `ControlPage` that the agent shares with the workers."""

    interface: str = ""
    """The network interface at which other nodes reach this one; empty if unknown."""

    forwarded_signals: tuple[str, ...] = ()
    """Signals that the agent forwards to the workers."""

    virtual_local_rank: bool = False
    """Whether each worker sees only its own GPU, as number 0."""

    timer_file: str = ""
    """The path of the pipe through which workers set timers; empty if the agent serves none."""

    worker_channel: str = ""
    """Name of the socket at which the agent accepts connections of its workers; empty if it accepts none."""

    snapshot_channel: str = ""
    """Name of the socket at which the agent accepts snapshots of its workers; empty if it accepts none."""

    stacks: tuple[str, ...] = ()
    """How each worker writes its stacks, by local rank; see `StackMemory.variable`. Empty if none does."""

    collectives: tuple[str, ...] = ()
    """The memory for the numbers of each worker's collectives, by local rank. Empty if nothing reads them."""


def worker_environment(
    base: Mapping[str, str], part: Assignment, local_rank: int, run: RunFacts, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a worker: ``base``, overridden by the contract, and by the user's ``extra``."""
    rank = part.rank_of(local_rank)
    torchrun = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(part.group_rank),
        "ROLE_RANK": str(part.role_rank_of(local_rank)),
        "ROLE_NAME": part.role or ROLE,
        "WORLD_SIZE": str(part.world_size),
        "LOCAL_WORLD_SIZE": str(part.local_world_size),
        "GROUP_WORLD_SIZE": str(part.group_world_size),
        "ROLE_WORLD_SIZE": str(part.role_world_size),
        "MASTER_ADDR": part.master_addr,
        "MASTER_PORT": str(part.master_port),
        # The number of new rounds, which is the same on all nodes. torch counts per agent: after a failure workers
        # then had different store prefixes.
        "TORCHELASTIC_RESTART_COUNT": str(part.round - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(run.max_restarts),
        "TORCHELASTIC_RUN_ID": run.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # every rank is a client: see store_server.py
        "TORCHELASTIC_ERROR_FILE": str(error_file(part, local_rank, run)),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(dict.fromkeys((*_SIGNALS, *run.forwarded_signals))),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    ours = {
        "HPCELASTIC_ROUND": str(part.round),
        "HPCELASTIC_TOKEN": str(part.round),
        LOCAL_RANK: str(local_rank),
        "HPCELASTIC_RUN_DIR": str(run.paths.root),
        "HPCELASTIC_RUN_ID": run.run_id,
        "HPCELASTIC_NODE": name_of(run.node),
        "HPCELASTIC_CONTROL_PAGE": run.control_page,
        "HPCELASTIC_INTERFACE": run.interface,
        MARKER: run.node,
        **({TIMER_FILE: run.timer_file} if run.timer_file else {}),
        **({"HPCELASTIC_WORKER_CHANNEL": run.worker_channel} if run.worker_channel else {}),
        **({"HPCELASTIC_SNAPSHOT_CHANNEL": run.snapshot_channel} if run.snapshot_channel else {}),
        **({"HPCELASTIC_STACKS": run.stacks[local_rank]} if run.stacks else {}),
        **({"HPCELASTIC_ROLLBACK": json.dumps(encode(part.rollback))} if part.rollback else {}),
        **({COLLECTIVES: run.collectives[local_rank]} if run.collectives else {}),
    }
    environ = {**base, **_omp_threads(base, part.local_world_size), **torchrun, **ours, **extra}
    return {**environ, **_single_gpu(environ, local_rank)} if run.virtual_local_rank else environ


def error_file(part: Assignment, local_rank: int, run: RunFacts) -> Path:
    """Return the path of the file for the exception of a worker, in the format of torch's ``@record``."""
    if part.early:
        return run.paths.early_log(name_of(run.node), local_rank, "error.json")
    return run.paths.error_file(part.round, part.rank_of(local_rank))


def common_environment(
    base: Mapping[str, str], local_world_size: int, run: RunFacts, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that are the same for all workers of a node in all rounds, as the fork server needs them."""
    return {**base, **_omp_threads(base, local_world_size), **extra, MARKER: run.node}


def _single_gpu(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables that make only the GPU of ``local_rank`` visible. ROCm reads CUDA's variable too."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpu = str(local_rank) if visible is None else visible.split(",")[local_rank].strip()
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpu}


def _omp_threads(base: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    return {} if "OMP_NUM_THREADS" in base or local_world_size == 1 else {"OMP_NUM_THREADS": "1"}
