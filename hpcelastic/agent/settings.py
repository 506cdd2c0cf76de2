"""Settings of the agent: what a node runs, and how it starts, stops and logs its workers."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings

Streams = Literal["none", "out", "err", "both"]


@dataclass(frozen=True)
class Entrypoint:
    """What each worker runs: exactly one of ``script``, ``module`` and ``function``."""

    script: str | None = None
    """A Python file, relative to the working directory."""

    module: str | None = None
    """A module to run as ``python -m MODULE``."""

    function: str | None = None
    """``package.module:function``, called once in each worker; its return value is kept."""

    args: tuple[str | int | float | bool, ...] = ()
    """Command-line arguments of a script or module, positional arguments of a function."""

    def __post_init__(self) -> None:
        given = [name for name in ("script", "module", "function") if getattr(self, name)]
        if len(given) != 1:
            what = " and ".join(given) or "no script, module or function"
            raise ValueError(f"entrypoint has {what}; give exactly one of script, module and function")
        if self.function and not all(self.function.partition(":")):
            raise ValueError(f"entrypoint.function is {self.function!r}; write package.module:function")


@dataclass(frozen=True)
class WorkerSettings:
    """The worker processes of one node."""

    per_node: int | Literal["auto"] = "auto"
    """Workers on each node; ``auto`` is one for each GPU that the node was given, 1 without a GPU."""

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

    redirect: Streams = "both"
    """Streams that go to a file for each round and rank in the run's directory."""

    tee: Streams = "none"
    """Streams that go to such a file and to the agent's output as well, each line with its rank."""


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
