"""Agents of torch that run programs. Each agent is a fork of this process, so that torch is already imported."""

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from hpcelastic.pytorch.torchrun import FileRendezvousHandler, create_handler

QUICK: dict[str, Any] = {"lease": 2, "margin": 0.5, "poll": 0.05, "last_call": 0.5, "join_timeout": 20}

_forked = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Nodes:
    """The numbers of nodes of the run ``r`` in ``directory``."""

    directory: Path
    min_nodes: int
    max_nodes: int


class TorchAgents:
    """Agents of one run. Those that are left at the end are killed."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._started: list[BaseProcess] = []

    def launch(self, *command: str, max_restarts: int = 0) -> BaseProcess:
        """Start ``command`` with `launch_agent`, like torchrun."""
        return self._start(_launch, self._nodes, command, max_restarts)

    def run(self, *command: str, exit_barrier: float) -> BaseProcess:
        """Start ``command`` with an agent and without a launcher, like torch's own tests."""
        return self._start(_run, self._nodes, command, exit_barrier)

    def watch(self, counts: Path) -> BaseProcess:
        """Take part in a round, and write the first count of waiting nodes that is not 0 to a file in ``counts``."""
        return self._start(_watch, self._nodes, counts)

    def fork(self, pid: Path) -> BaseProcess:
        """Take part in a round, fork a worker that sleeps, write its process id to a file, and do nothing more."""
        return self._start(_fork, self._nodes, pid)

    def _start(self, target: Any, *args: Any) -> BaseProcess:
        process = _forked.Process(target=_reported, args=(target, *args))
        process.start()
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.join()


@contextlib.contextmanager
def torch_agents(nodes: Nodes) -> Iterator[TorchAgents]:
    agents = TorchAgents(nodes)
    try:
        yield agents
    finally:
        agents.end()


def handler_of(directory: Path, nodes: int = 1, **conf: Any) -> FileRendezvousHandler:
    """Return a handler of the run ``r`` in ``directory``, with ``conf`` in place of quick times."""
    return create_handler(_parameters(Nodes(directory, nodes, nodes), QUICK | conf))


def status(process: BaseProcess) -> int | None:
    """Wait for the end of an agent and return its exit status."""
    process.join(60)
    return process.exitcode


def _reported(target: Any, *args: Any) -> None:
    """Call ``target``. Print its error and exit with 1, like Python. SystemExit passes through with its status."""
    try:
        target(*args)
    except Exception:
        traceback.print_exc()
        os._exit(1)


def _launch(nodes: Nodes, command: tuple[str, ...], max_restarts: int) -> None:
    config = LaunchConfig(
        nodes.min_nodes,
        nodes.max_nodes,
        1,
        logs_specs=DefaultLogsSpecs(),
        run_id="r",
        rdzv_backend="hpcelastic",
        rdzv_endpoint=str(nodes.directory),
        rdzv_configs=dict(QUICK),
        max_restarts=max_restarts,
        monitor_interval=0.05,
        local_addr="127.0.0.1",
    )
    launch_agent(config, command[0], list(command[1:]))


def _run(nodes: Nodes, command: tuple[str, ...], exit_barrier: float) -> None:
    parameters = _parameters(nodes, QUICK)
    spec = WorkerSpec(
        "role", 1, create_handler(parameters), entrypoint=command[0], args=command[1:], monitor_interval=0.05
    )
    agent = LocalElasticAgent(spec, DefaultLogsSpecs(), exit_barrier_timeout=exit_barrier)
    result = agent.run()
    spec.rdzv_handler.shutdown()
    if result.is_failed():
        raise RuntimeError(f"workers failed: {result.failures}")


def _watch(nodes: Nodes, counts: Path) -> None:
    handler = create_handler(_parameters(nodes, QUICK))
    handler.next_rendezvous()
    while not (count := handler.num_nodes_waiting()):
        time.sleep(0.02)
    (counts / str(os.getpid())).write_text(str(count))
    handler.shutdown()


def _fork(nodes: Nodes, pid: Path) -> None:
    handler = create_handler(_parameters(nodes, QUICK))
    handler.next_rendezvous()
    worker = _forked.Process(target=time.sleep, args=(1000,))
    worker.start()
    pid.with_suffix(".new").write_text(str(worker.pid))
    pid.with_suffix(".new").rename(pid)
    time.sleep(1000)


def _parameters(nodes: Nodes, times: Mapping[str, Any]) -> RendezvousParameters:
    return RendezvousParameters(
        "hpcelastic", str(nodes.directory), "r", nodes.min_nodes, nodes.max_nodes, "127.0.0.1", **dict(times)
    )
