"""Agents behind torch's interface, torch's own and hpcelastic's, with the rendezvous handler of the plug-in.

Each agent is a fork of this process, so that torch is already imported.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server import api as server
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from hpcelastic.pytorch.agent import ElasticAgent
from hpcelastic.pytorch.torchrun import create_handler
from tests.pytorch.torch_agents import QUICK

AGENTS: dict[str, Any] = {"torch": LocalElasticAgent, "hpcelastic": ElasticAgent}

TIMEOUT = 250.0
"""Seconds in which an agent ends, on a machine that is busy with other things."""

_forked = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Node:
    """The workers of one node."""

    entrypoint: Any
    args: tuple[Any, ...] = ()
    workers: int = 1
    role: str = "default"
    exit_barrier: float = 5.0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of WorkerSpec."""


@dataclass(frozen=True)
class Ended:
    """The end of an agent."""

    result: RunResult | None
    state: WorkerState
    """State of the worker group afterwards."""

    ranks: list[tuple[int, int, int, int, int]]
    """Local rank, rank, rank in the role, world size and size of the role of each worker in the worker group."""

    error: str = ""
    """Name of the class of the exception that has ended the agent."""

    @property
    def values(self) -> dict[int, Any]:
        assert self.result is not None, self.error
        assert not self.result.is_failed(), self.result
        return self.result.return_values


@dataclass(frozen=True)
class Running:
    """An agent that runs."""

    process: BaseProcess
    end: Connection

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ended(self) -> Ended:
        """Wait for the end of the agent."""
        assert self.end.poll(TIMEOUT), "the agent does not end"
        ended: Ended = self.end.recv()
        self.process.join()
        return ended


HandlerOf = Callable[[int], RendezvousHandler]
"""A function that creates the handler of the node with a number."""


class Job:
    """The agents of the run ``r`` in ``directory``. Agents that are left at the end are killed."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.directory = kind, directory
        self._running: list[Running] = []

    def handlers(self, min_nodes: int, max_nodes: int) -> HandlerOf:
        parameters = ("hpcelastic", str(self.directory), "r", min_nodes, max_nodes, "127.0.0.1")
        return lambda _: create_handler(RendezvousParameters(*parameters, **QUICK))

    def start(self, node: Node, handler_of: HandlerOf, number: int = 0) -> Running:
        receiver, sender = _forked.Pipe(duplex=False)
        args = (self.kind, node, handler_of, number, str(self.directory / "logs"), sender)
        process = _forked.Process(target=_run, args=args)
        process.start()
        sender.close()
        self._running.append(Running(process, receiver))
        return self._running[-1]

    def run(self, *nodes: Node, handler_of: HandlerOf | None = None) -> list[Ended]:
        """Run a job of exactly these nodes."""
        handler_of = handler_of or self.handlers(len(nodes), len(nodes))
        return [one.ended() for one in [self.start(node, handler_of, i) for i, node in enumerate(nodes)]]

    def close(self) -> None:
        for running in self._running:
            running.kill()


@contextlib.contextmanager
def job_in(kind: str, directory: Path) -> Iterator[Job]:
    job = Job(kind, directory)
    try:
        yield job
    finally:
        job.close()


def agent_of(kind: str, node: Node, handler: RendezvousHandler, logs: str) -> server.ElasticAgent:
    more = {"monitor_interval": 0.05, "max_restarts": 0, **node.more}
    spec = WorkerSpec(node.role, node.workers, handler, entrypoint=node.entrypoint, args=node.args, **more)
    specs = DefaultLogsSpecs(logs)
    agent: server.ElasticAgent = AGENTS[kind](spec, specs, exit_barrier_timeout=node.exit_barrier)
    return agent


def _run(kind: str, node: Node, handler_of: HandlerOf, number: int, logs: str, end: Connection) -> None:
    handler = handler_of(number)
    agent = agent_of(kind, node, handler, logs)
    result, error = None, ""
    try:
        result = agent.run()
    except Exception as caught:
        error = type(caught).__name__
    handler.shutdown()
    group = agent.get_worker_group()
    ranks = [(w.local_rank, w.global_rank, w.role_rank, w.world_size, w.role_world_size) for w in group.workers]
    end.send(Ended(result, group.state, ranks, error))
    end.close()
    os._exit(0)  # not the exit handlers of the process of which this one is a fork
