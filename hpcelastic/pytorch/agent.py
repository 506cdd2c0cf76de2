"""hpcelastic's agent behind torch's `ElasticAgent`: for programs that create torch's `LocalElasticAgent` themselves.

    from hpcelastic.pytorch.agent import ElasticAgent  # in place of LocalElasticAgent

    spec = WorkerSpec(role="trainer", local_world_size=8, entrypoint=train, rdzv_handler=handler)
    result = ElasticAgent(spec, logs_specs=DefaultLogsSpecs()).run()

The rendezvous handler of the spec only tells which run to join: rendezvous, store and supervision are hpcelastic's, as
in `hpcelastic.pytorch.launch`. docs/torchrun.md lists the differences to LocalElasticAgent.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.distributed.elastic.agent.server import api as torchs
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig

from hpcelastic.errors import ConfigError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.network.sockets import endpoint
from hpcelastic.protocol.events import WorkersStarted
from hpcelastic.protocol.settings import STATIC, TIMINGS
from hpcelastic.pytorch.launch import run_launch
from hpcelastic.pytorch.launch_config import LaunchSpec, check_fields, launch_spec
from hpcelastic.pytorch.telemetry import Telemetry
from hpcelastic.pytorch.torchrun import FileRendezvousHandler

_SAME_FIELDS = (
    *("role", "max_restarts", "monitor_interval", "event_log_handler", "numa_options"),
    *("duplicate_stdout_filters", "duplicate_stderr_filters", "virtual_local_rank"),
)
"""Fields that WorkerSpec and LaunchConfig both have. A version of torch may lack some."""

_KNOWN_FIELDS = {
    *_SAME_FIELDS,
    *("local_world_size", "rdzv_handler", "fn", "entrypoint", "args", "master_port", "master_addr", "local_addr"),
}
"""Supported fields of WorkerSpec."""


class ElasticAgent(torchs.ElasticAgent):
    """Runs the workers of ``spec`` on this node. The arguments are those of torch's LocalElasticAgent.

    ``exit_barrier_timeout`` and ``uninterruptible_state_timeout`` have no effect: each agent stays until the run has
    ended, and no agent waits for a process that a hung filesystem blocks. Raises ConfigError for a handler that does
    not tell where its run is, and for settings that hpcelastic does not support.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        check_fields(spec, _KNOWN_FIELDS, needed=["entrypoint"])
        self._spec, self._run = spec, _run_of(spec.rdzv_handler)
        given = {
            "logs_specs": logs_specs,
            "start_method": start_method,
            "log_line_prefix_template": log_line_prefix_template,
        }
        self._config = _launch_config(spec, self._run, given)
        self._config.shutdown_timeout = shutdown_timeout  # torch 2.10 has no such field
        self._health_check_server = health_check_server
        self._telemetry: Telemetry | None = None
        """The known facts about the last run; None before the first."""

    def run(self, role: str = torchs.DEFAULT_ROLE) -> RunResult:
        """Run the workers until the run ends. Return the results or the failures of ranks, by global rank.

        The failures are those of all nodes, the root cause first. The state is STOPPED if this node has left a run that
        goes on, for example after a drain. ``role`` has no effect, as in torch. Raises the errors of
        `hpcelastic.pytorch.launch.launch_agent` except ChildFailedError.
        """
        launch = _launch(self._config, self._spec, self._run)
        self._telemetry = Telemetry(launch.event_context)
        outcome = run_launch(launch, self._telemetry, self._health_check_server)
        state = WorkerState.STOPPED if outcome.left else WorkerState.SUCCEEDED
        state = WorkerState.FAILED if outcome.failures else state
        return RunResult(state, dict(outcome.values), dict(outcome.failures))

    def get_worker_group(self, role: str = torchs.DEFAULT_ROLE) -> WorkerGroup:
        """Return a copy of the newest known state of this node's workers; any thread may call it.

        ``store`` is None, because agents of hpcelastic have no store in common with their workers.
        """
        group = WorkerGroup(self._spec)
        if self._telemetry is not None:
            group.state = self._telemetry.state
            if self._telemetry.workers is not None:
                _fill(group, self._telemetry.workers)
        return group


def _fill(group: Any, started: WorkersStarted) -> None:
    """Set the workers and ranks of a WorkerGroup, whose attributes torch declares as None."""
    group.group_rank, group.group_world_size = started.group_rank, started.group_world_size
    group.master_addr = group.spec.master_addr or started.master_addr
    group.master_port = started.master_port
    for local_rank, rank in enumerate(sorted(started.pids)):
        role_rank = started.role_rank + local_rank
        worker = Worker(local_rank, rank, role_rank, started.world_size, started.role_world_size)
        worker.id = started.pids[rank]
        group.workers[local_rank] = worker


# The launch


@dataclass(frozen=True)
class _Run:
    """The run that a rendezvous handler tells of."""

    values: Mapping[str, Any]
    """The fields of LaunchConfig that say which run it is."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    master: tuple[str, int] | None = None
    """Address and port of the rendezvous, which torch's launchers repeat in the spec as those of the workers' store."""


def _launch_config(spec: WorkerSpec, run: _Run, given: Mapping[str, Any]) -> LaunchConfig:
    values = {name: getattr(spec, name) for name in _SAME_FIELDS if hasattr(spec, name)}
    values |= {"nproc_per_node": spec.local_world_size, **run.values, **given}
    if spec.local_addr:
        values["local_addr"] = spec.local_addr
    if signals := os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE"):
        values["signals_to_handle"] = signals
    supported = {each.name for each in fields(LaunchConfig)}
    return LaunchConfig(**{name: value for name, value in values.items() if name in supported})


def _launch(config: LaunchConfig, spec: WorkerSpec, run: _Run) -> LaunchSpec:
    launch = launch_spec(config, spec.entrypoint, spec.args)
    agent = replace(launch.task.agent, network=run.network)
    if (spec.master_addr, spec.master_port) != run.master:
        address = {"MASTER_ADDR": spec.master_addr} if spec.master_addr else {}
        agent = replace(agent, store_port=spec.master_port or 0, environment={**agent.environment, **address})
    return replace(launch, task=replace(launch.task, agent=agent))


# The run


def _run_of(handler: RendezvousHandler) -> _Run:
    """Return the run that ``handler`` tells of. Raises ConfigError if it does not tell where other nodes find it."""
    if isinstance(handler, FileRendezvousHandler):
        return _run_in_files(handler)
    if isinstance(handler, StaticTCPRendezvous):
        return _static_run(handler)
    if isinstance(handler, DynamicRendezvousHandler) and handler.settings.max_nodes == 1:
        return _run_of_one_node(handler)
    backend = handler.get_backend()
    raise ConfigError(
        f"the rendezvous handler of the backend {backend!r} does not tell where the other nodes of its run are; create "
        "it with RendezvousParameters(backend='hpcelastic', endpoint=DIRECTORY, ...), or use "
        f"hpcelastic.pytorch.launch.elastic_launch with LaunchConfig(rdzv_backend={backend!r})"
    )


def _run_in_files(handler: FileRendezvousHandler) -> _Run:
    spec = handler.spec
    nodes, times = spec.settings.nodes, spec.settings.rendezvous
    values = {
        "run_id": spec.run_id,
        "min_nodes": nodes.min,
        "max_nodes": nodes.max,
        "rdzv_endpoint": str(spec.paths.root.parent),
        "rdzv_configs": {name: getattr(times, name) for name in TIMINGS},
        "local_addr": spec.address,
    }
    return _Run(values, spec.network)


def _static_run(handler: StaticTCPRendezvous) -> _Run:
    master = handler.master_addr, handler.master_port
    values = {
        "run_id": handler.run_id,
        "min_nodes": handler.world_size,
        "max_nodes": handler.world_size,
        "rdzv_backend": STATIC,
        "rdzv_endpoint": endpoint(*master),
        "rdzv_configs": {"rank": handler.rank, "join_timeout": handler.timeout.total_seconds()},
    }
    return _Run(values, master=master)


def _run_of_one_node(handler: DynamicRendezvousHandler) -> _Run:
    """Return a run in a directory of its own, because no other node has to find it."""
    timeout = handler.settings.timeout
    times = {"join_timeout": timeout.join.total_seconds(), "last_call": timeout.last_call.total_seconds()}
    return _Run({"run_id": handler.get_run_id(), "min_nodes": 1, "max_nodes": 1, "rdzv_configs": times})
