"""The configuration of one job, typed and resolved. Pure: plain values, no file, no clock.

This module defines the settings of the run itself. Each other group of settings is defined in the layer that uses it.
Nothing here imports pydantic or yaml, so an agent reads its configuration in milliseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, ClassVar

from hpcelastic.agent.settings import (
    AgentSettings,
    Entrypoint,
    HangSettings,
    LogSettings,
    StragglerSettings,
    WorkerSettings,
)
from hpcelastic.config.slurm import SlurmSettings, check_time
from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.storage.paths import RUN_NAME

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NODES = re.compile(r"(\d{1,9})(?:(?:\.\.|:)(\d{1,9}))?")

RENAMED_KEYS = {"network": {"doorbell": "notifications"}}
"""Old names of keys by group, which are still accepted, and the names that replace them."""


@dataclass(frozen=True)
class RunSettings:
    """Name, directory and total duration of the run."""

    name: str | None = None
    """Name of the run, its directory and its SLURM job. If not set, made of the name of the job file and the time."""

    directory: str = "runs"
    """Directory that contains the directories of runs. Every node must see it under this path."""

    total_time: str | None = None
    """Maximum duration of a job over all of its requeues: MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED. At its time limit
    the job is requeued until it has taken that long. A job that is submitted for the run later, as with ``--resume``,
    counts anew. If not set, the run ends at the time limit of its job."""

    code: tuple[str, ...] = ()
    """Files and directories of which the run keeps a copy, relative to the working directory. The workers run the copy,
    also after a requeue. ``git`` stands for all files of the repository that git does not ignore."""

    group: str | None = None
    """Group of users who may see the run, save checkpoints, drain its nodes and cancel it."""

    def __post_init__(self) -> None:
        if self.name is not None and not RUN_NAME.fullmatch(self.name):
            raise ValueError(
                f"run.name is {self.name!r}; use up to 100 letters, digits, '.', '_' and '-', "
                "and begin with a letter or a digit, because it is the name of a directory and of a SLURM job"
            )
        if self.total_time is not None:
            check_time("run.total_time", self.total_time)
        if not self.directory:
            raise ValueError(
                "run.directory is ''; write a directory that every node sees, or . for the working directory"
            )


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """A training job: the program, the nodes, and the fault tolerance."""

    # Read by pydantic, here and in every group below; a plain value, so that this module needs no pydantic.
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }

    run: RunSettings = field(default_factory=RunSettings)
    entrypoint: Entrypoint

    nodes: NodeRange = field(default_factory=NodeRange)
    """Number of nodes of the run: a number, ``MIN..MAX``, or
    ``{min: MIN, max: MAX, spares: SPARES, multiple: MULTIPLE, within: PLACE}``."""

    workers: WorkerSettings = field(default_factory=WorkerSettings)
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    hangs: HangSettings = field(default_factory=HangSettings)
    stragglers: StragglerSettings = field(default_factory=StragglerSettings)

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for every worker."""

    exporters: tuple[str, ...] = ()
    """Functions ``package.module:function`` that receive the events of each agent, such as for a metrics service."""

    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    """The SLURM request. Only ``submit`` and ``sbatch`` use it. Any other sbatch option can be set in ``options``."""

    def __post_init__(self) -> None:
        if self.run.code and not self.entrypoint.script:
            raise ValueError(
                "run.code needs entrypoint.script: a module or a function is found in the working directory"
            )
        for name in self.environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(
                    f"environment.{name} is not a valid variable name; use letters, digits and '_', and no digit first"
                )
        for name in self.exporters:
            if not all(name.partition(":")):
                raise ValueError(f"exporters has {name!r}; write package.module:function")

    @property
    def protocol_settings(self) -> Settings:
        """The settings of the protocol."""
        return Settings(self.nodes, self.rendezvous, self.restarts)

    @property
    def agent_settings(self) -> AgentSettings:
        """The settings of an agent, without those of the rendezvous."""
        return AgentSettings(
            self.entrypoint,
            self.workers,
            self.logs,
            self.environment,
            self.network,
            self.health,
            self.hangs,
            self.stragglers,
        )


def default_name(path: str | PurePath, now: datetime) -> str:
    """Return the name of a run without ``run.name``: the stem of the job file and the time."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(path).stem).strip("._-")[:80]
    return f"{stem or 'run'}-{now:%Y%m%d-%H%M%S}"


def node_range(text: str) -> NodeRange:
    """Read ``3``, ``2..4`` or torchrun's ``2:4``; raises ValueError."""
    match = NODES.fullmatch(text.strip())
    if not match:
        raise ValueError(f"nodes is {text!r}; write a number such as 4, or MIN..MAX such as 2..4")
    return NodeRange(int(match[1]), int(match[2] or match[1]))
