"""Settings of the agent: the program of its workers, and how it starts, stops and logs them."""

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings

Streams = Literal["none", "out", "err", "both"]
Numa = Literal["none", "node", "socket", "exclusive", "core-complex"]
RankStreams = Mapping[str, Streams]
"""Streams by local rank, ``none`` for ranks that are not listed. Keys are strings, as in JSON."""


@dataclass(frozen=True)
class Entrypoint:
    """The program of each worker: exactly one of ``script``, ``module``, ``function`` and ``program``."""

    script: str | None = None
    """A Python file, relative to the working directory."""

    module: str | None = None
    """A module to run as ``python -m MODULE``."""

    function: str | None = None
    """``package.module:function``, called once in each worker. Its return value is kept."""

    program: str | None = None
    """A program other than a Python script: a path, or a name that is searched in PATH."""

    args: tuple[str | int | float | bool, ...] = ()
    """Command-line arguments, or positional arguments of a function. In the command line ``${local_rank}`` is replaced
    by the worker's local rank."""

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
    """Workers on each node. ``auto`` starts one for each GPU allocated on the node, and 1 without a GPU."""

    role: str = "default"
    """Role of these workers, their ROLE_NAME. ROLE_RANK and ROLE_WORLD_SIZE count the workers with the same role."""

    virtual_local_rank: bool = False
    """Make only its own GPU visible to each worker: CUDA_VISIBLE_DEVICES names that GPU, and LOCAL_RANK is always 0."""

    numa: Numa = "none"
    """Bind each worker to processors near its GPU: all of the NUMA node, all of the socket, an exclusive share of the
    NUMA node's cores, or the cores that share one cache. Only processors that the agent may use are selected."""

    stop_grace: float = 15.0
    """Seconds between SIGTERM and SIGKILL when a worker group is stopped."""

    park_grace: float = 5.0
    """Seconds in which a worker that can be resumed must leave its round when the round ends. After that time it is
    killed, and started anew in the next round. 0 starts all workers anew in each round."""

    forward_signals: tuple[str, ...] = ()
    """Signals, such as ``SIGUSR1``, that the agent forwards to its workers."""

    timers: bool = False
    """Serve the timers of ``torch.distributed.elastic.timer``: send a worker a signal, by default SIGKILL, when a timer
    that it has set expires."""

    preload: tuple[str, ...] = ("torch",)
    """Modules that are imported once on each node, by a process that then forks each worker. ``[]`` starts every worker
    in a fresh interpreter."""

    learn_imports: bool = True
    """Preload also the modules of installed packages that the workers of earlier rounds have imported. A package that
    starts threads, uses a GPU or reads a worker's environment variables at its import is not preloaded."""

    def __post_init__(self) -> None:
        if self.per_node != "auto" and self.per_node < 1:
            raise ValueError(f"workers.per_node is {self.per_node}; it must be auto, or 1 or more")
        if not self.role:
            raise ValueError("workers.role is ''; write a name, such as trainer")
        if self.stop_grace < 0:
            raise ValueError(f"workers.stop_grace is {self.stop_grace}; it must be 0 seconds or more")
        if self.park_grace < 0:
            raise ValueError(f"workers.park_grace is {self.park_grace}; it must be 0 seconds or more")
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"workers.preload has {name!r}, which is not the name of a module; write torch, for example"
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
    """The destinations of the workers' output."""

    redirect: Streams | RankStreams = "both"
    """Streams that are written to a file for each round and rank: for all workers, or by local rank, such as
    ``{0: none, 1: err}``."""

    tee: Streams | RankStreams = "none"
    """Streams that are written to such a file and also to the agent's output, each line with a prefix."""

    prefix: str = "[${rank}] "
    """The prefix of these lines. ``${rank}``, ``${local_rank}`` and ``${role_name}`` are replaced by the worker's."""

    local_ranks: tuple[int, ...] = ()
    """Local ranks whose output may go to the agent's output. Default: all."""

    match_out: tuple[str, ...] = ()
    """Texts to search in standard output. Lines that contain one of them are also copied to one file for each round and
    node. Only streams that are written to files are searched."""

    match_err: tuple[str, ...] = ()
    """The same for standard error."""

    directory: str | None = None
    """Parent directory of the log directory, which has the name of the run's directory. The run's directory then has a
    link to it. Default: the logs are in the run's directory."""

    keep_rounds: int | None = 1000
    """Number of rounds whose logs stay. Those of earlier rounds are removed when a round begins. Large event logs lose
    the events of earlier rounds too, once these are part of the account of the run. With null all stay."""

    def __post_init__(self) -> None:
        for name in ("redirect", "tee"):
            for rank in getattr(self, name) if not isinstance(getattr(self, name), str) else ():
                if not (rank.isascii() and rank.isdigit()):
                    raise ValueError(f"logs.{name} has {rank!r}, which is not a local rank; write {{0: out, 1: both}}")
        for rank in self.local_ranks:
            if rank < 0:
                raise ValueError(f"logs.local_ranks has {rank}; local ranks begin with 0")
        for name in ("match_out", "match_err"):
            if "" in getattr(self, name):
                raise ValueError(f"logs.{name} has '', which every line contains; give a text to search")
        if self.directory == "":
            raise ValueError("logs.directory is ''; name a directory, or leave it out")
        if self.keep_rounds is not None and self.keep_rounds < 1:
            raise ValueError(f"logs.keep_rounds is {self.keep_rounds}; give at least 1, or null for all")

    def to_file(self, local_rank: int, stream: str) -> bool:
        """Return whether ``stream``, out or err, is written to a file."""
        return _covers(self.redirect, local_rank, stream) or _covers(self.tee, local_rank, stream)

    def shown(self, local_rank: int, stream: str) -> bool:
        """Return whether a stream that is written to a file is also written to the agent's output."""
        return _covers(self.tee, local_rank, stream) and not self.hides(local_rank)

    def hides(self, local_rank: int) -> bool:
        """Return whether no output of this worker goes to the agent's output."""
        return bool(self.local_ranks) and local_rank not in self.local_ranks

    def matches(self, stream: str) -> tuple[str, ...]:
        """Return the texts of the lines that are also copied to a file."""
        return self.match_out if stream == "out" else self.match_err


def _covers(streams: Streams | RankStreams, local_rank: int, stream: str) -> bool:
    given = streams if isinstance(streams, str) else streams.get(str(local_rank), "none")
    return given in (stream, "both")


@dataclass(frozen=True)
class HangSettings:
    """The detection of rounds that make no progress, and what follows."""

    action: Literal["auto", "ignore", "report", "restart", "exclude"] = "auto"
    """The action after a hang. ``ignore``: the agents do not look for hangs. ``report``: they report it. ``restart``: a
    new round begins, in which the processes that the others wait for are replaced. ``exclude``: the same, without the
    nodes of these processes. ``auto`` restarts if the script calls ``should_stop()`` in each step, and reports
    otherwise."""

    factor: float = 5.0
    """The limit of a step, as a multiple of the longest of the last 100 steps."""

    min_limit: float = 10.0
    """The smallest limit of a step, in seconds."""

    first_step: float = 1800.0
    """The limit from the first call of ``should_stop()`` of a process in a round to the second, in seconds. This step
    often includes a compilation."""

    phase: float = 3600.0
    """The limit of a phase that the script announces with ``phase()``, and of a save, in seconds."""

    without_marks: float = 300.0
    """The limit without a step, in seconds: before the first one, and for scripts that do not call ``should_stop()``.
    Only a round in which no rank makes progress is then a hang."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"hangs.factor is {self.factor}; it must be a number, 1 or more")
        for name in ("min_limit", "first_step", "phase", "without_marks"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"hangs.{name} is {getattr(self, name)}; it must be a number of seconds, more than 0")


@dataclass(frozen=True)
class StragglerSettings:
    """The search for stragglers: ranks that the others wait for in each step."""

    action: Literal["ignore", "report", "exclude"] = "report"
    """The action after a straggler was found. ``ignore``: agents do not look for stragglers. ``report``: they report
    it. ``exclude``: its node is drained if another node stands by."""

    threshold: float = 1.2
    """A rank is a straggler if it works longer than the median rank in each step, by this factor."""

    steps: int = 50
    """The number of steps over which ranks are compared. They take two renewals of the lease at least."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold >= 1.05):
            raise ValueError(f"stragglers.threshold is {self.threshold}; it must be a factor, 1.05 or more")
        if self.steps < 1:
            raise ValueError(f"stragglers.steps is {self.steps}; it must be 1 or more")


@dataclass(frozen=True)
class AgentSettings:
    """All settings of an agent except those of the rendezvous."""

    entrypoint: Entrypoint
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the environment of every worker."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    hangs: HangSettings = field(default_factory=HangSettings)
    stragglers: StragglerSettings = field(default_factory=StragglerSettings)
    store_port: int = 0
    """Port of the store in every round, the workers' MASTER_PORT. 0 selects a free port in each round."""
