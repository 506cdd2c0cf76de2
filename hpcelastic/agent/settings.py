"""Settings of the agent: what a node runs, and how it starts, stops and logs its workers."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings

Streams = Literal["none", "out", "err", "both"]
Numa = Literal["none", "node", "socket", "exclusive", "core-complex"]
RankStreams = Mapping[str, Streams]
"""Streams by local rank, none for those that are not there. Keys are text, as in JSON."""


@dataclass(frozen=True)
class Entrypoint:
    """What each worker runs: exactly one of ``script``, ``module``, ``function`` and ``program``."""

    script: str | None = None
    """A Python file, relative to the working directory."""

    module: str | None = None
    """A module to run as ``python -m MODULE``."""

    function: str | None = None
    """``package.module:function``, called once in each worker; its return value is kept."""

    program: str | None = None
    """A program that is no Python script: a path, or a name that is looked for in PATH."""

    args: tuple[str | int | float | bool, ...] = ()
    """Command-line arguments, in which ``${local_rank}`` is the worker's; positional arguments of a function."""

    def __post_init__(self) -> None:
        given = [name for name in ("script", "module", "function", "program") if getattr(self, name)]
        if len(given) != 1:
            what = " and ".join(given) or "no script, module, function or program"
            raise ValueError(f"entrypoint has {what}; give exactly one of script, module, function and program")
        if self.function and not all(self.function.partition(":")):
            raise ValueError(f"entrypoint.function is {self.function!r}; write package.module:function")


@dataclass(frozen=True)
class WorkerSettings:
    """The worker processes of one node."""

    per_node: int | Literal["auto"] = "auto"
    """Workers on each node; ``auto`` is one for each GPU that the node was given, 1 without a GPU."""

    role: str = "default"
    """Role of these workers: they have ROLE_NAME and, among all with the same, ROLE_RANK and ROLE_WORLD_SIZE."""

    virtual_local_rank: bool = False
    """Let each worker see its own GPU alone: CUDA_VISIBLE_DEVICES names that one, and LOCAL_RANK is 0 for all."""

    numa: Numa = "none"
    """Bind each worker to processors near its GPU: all of the NUMA node, of the socket, a share of the node's cores of
    its own, or the cores that share one cache. Of those that the agent may use."""

    stop_grace: float = 15.0
    """Seconds between SIGTERM and SIGKILL when a worker group is stopped."""

    forward_signals: tuple[str, ...] = ()
    """Signals, such as ``SIGUSR1``, that the agent passes on to its workers."""

    preload: tuple[str, ...] = ("torch",)
    """Modules that are imported once on each node, in a process that is then forked into each worker; ``[]`` starts
    every worker in a fresh interpreter."""

    def __post_init__(self) -> None:
        if self.per_node != "auto" and self.per_node < 1:
            raise ValueError(f"workers.per_node is {self.per_node}; it must be auto, or 1 or more")
        if not self.role:
            raise ValueError("workers.role is ''; write a name, such as trainer")
        if self.stop_grace < 0:
            raise ValueError(f"workers.stop_grace is {self.stop_grace}; it must be 0 seconds or more")
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"workers.preload has {name!r}, which is no name of a module; write torch, for example"
                )
        for name in self.forward_signals:
            if name not in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCONT"):
                known = name in signal.Signals.__members__
                why = "the agent needs it itself" if known else "there is no such signal"
                raise ValueError(
                    f"workers.forward_signals has {name!r}: {why}; SIGUSR1, SIGUSR2, SIGHUP, SIGCONT can be forwarded"
                )


@dataclass(frozen=True)
class LogSettings:
    """Where the output of workers goes."""

    redirect: Streams | RankStreams = "both"
    """Streams that go to a file for each round and rank; of all workers, or by local rank: ``{0: none, 1: err}``."""

    tee: Streams | RankStreams = "none"
    """Streams that go to such a file and to the agent's output as well, each line with a prefix."""

    prefix: str = "[${rank}] "
    """What begins such a line; ``${rank}``, ``${local_rank}`` and ``${role_name}`` stand for the worker's."""

    local_ranks: tuple[int, ...] = ()
    """The only local ranks of which anything goes to the agent's output; all where not given."""

    match_out: tuple[str, ...] = ()
    """Texts: lines of standard output that have one of them are kept once more, in one file for each round and node;
    of streams that go to files."""

    match_err: tuple[str, ...] = ()
    """The same for standard error."""

    directory: str | None = None
    """Where the files are kept, in a directory named as the run's, which has a link to it; in the run's own where not
    given."""

    def __post_init__(self) -> None:
        for name in ("redirect", "tee"):
            for rank in getattr(self, name) if not isinstance(getattr(self, name), str) else ():
                if not (rank.isascii() and rank.isdigit()):
                    raise ValueError(f"logs.{name} has {rank!r}, which is no local rank; write {{0: out, 1: both}}")
        for rank in self.local_ranks:
            if rank < 0:
                raise ValueError(f"logs.local_ranks has {rank}; local ranks begin with 0")
        for name in ("match_out", "match_err"):
            if "" in getattr(self, name):
                raise ValueError(f"logs.{name} has '', which every line has; give a text to look for")
        if self.directory == "":
            raise ValueError("logs.directory is ''; name a directory, or leave it out")

    def to_file(self, local_rank: int, stream: str) -> bool:
        """Whether ``stream``, out or err, goes to a file."""
        return _covers(self.redirect, local_rank, stream) or _covers(self.tee, local_rank, stream)

    def shown(self, local_rank: int, stream: str) -> bool:
        """Whether what goes to a file goes to the agent's output as well."""
        return _covers(self.tee, local_rank, stream) and not self.hides(local_rank)

    def hides(self, local_rank: int) -> bool:
        """Whether nothing of this worker goes to the agent's output."""
        return bool(self.local_ranks) and local_rank not in self.local_ranks

    def matches(self, stream: str) -> tuple[str, ...]:
        """What lines of it are kept once more."""
        return self.match_out if stream == "out" else self.match_err


def _covers(streams: Streams | RankStreams, local_rank: int, stream: str) -> bool:
    given = streams if isinstance(streams, str) else streams.get(str(local_rank), "none")
    return given in (stream, "both")


@dataclass(frozen=True)
class AgentSettings:
    """All that an agent needs to know beside the rendezvous."""

    entrypoint: Entrypoint
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the environment of every worker."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    store_port: int = 0
    """Port of the store of every round, which workers find as MASTER_PORT; 0 for another free one in each."""
