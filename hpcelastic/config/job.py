"""The configuration of one job, typed and resolved. Pure: plain values, no file, no clock.

A job has no settings of its own beside its name and its directory; each group belongs to the layer that decides by it.
Nothing here imports pydantic or yaml, so an agent reads its configuration in milliseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, ClassVar

from hpcelastic.agent.settings import AgentSettings, Entrypoint, LogSettings, WorkerSettings
from hpcelastic.config.slurm import SlurmSettings, check_time
from hpcelastic.health.settings import HealthSettings
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NODES = re.compile(r"(\d{1,9})(?:(?:\.\.|:)(\d{1,9}))?")


@dataclass(frozen=True)
class RunSettings:
    """Which run this is, and where it is kept."""

    name: str | None = None
    """Names the run's directory and its job; made from the job file's name and the time where not given."""

    directory: str = "runs"
    """The directory that holds a directory for each run; every node must see it under this path."""

    total_time: str | None = None
    """How long the run may take, over as many jobs as that needs: MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED. Where not
    given, it ends with the time limit of its job."""

    def __post_init__(self) -> None:
        if self.name is not None and not NAME.fullmatch(self.name):
            raise ValueError(
                f"run.name is {self.name!r}; use up to 100 letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit, for it names a directory and a job"
            )
        if self.total_time is not None:
            check_time("run.total_time", self.total_time)
        if not self.directory:
            raise ValueError(
                "run.directory is ''; name a directory that every node sees, or . for the working directory"
            )


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """A training job: what runs, on how many nodes, and how it survives."""

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
    """How many nodes the run may have: a number, ``MIN..MAX``, or ``{min: MIN, max: MAX, spares: SPARES}``."""

    workers: WorkerSettings = field(default_factory=WorkerSettings)
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)
    restarts: RestartSettings = field(default_factory=RestartSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the environment of every worker."""

    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    """What to ask SLURM for; used by ``submit`` and ``sbatch`` only. Any sbatch option can stand under ``options``."""

    def __post_init__(self) -> None:
        for name in self.environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(
                    f"environment.{name} is no name of a variable; use letters, digits and '_', no digit first"
                )

    @property
    def protocol_settings(self) -> Settings:
        """All that the protocol decides with."""
        return Settings(self.nodes, self.rendezvous, self.restarts)

    @property
    def agent_settings(self) -> AgentSettings:
        """All that an agent needs to know beside the rendezvous."""
        return AgentSettings(self.entrypoint, self.workers, self.logs, self.environment, self.network, self.health)


def default_name(path: str | PurePath, now: datetime) -> str:
    """The name of a run whose job file gives none: the file's stem and the time."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(path).stem).strip("._-")[:80]
    return f"{stem or 'run'}-{now:%Y%m%d-%H%M%S}"


def node_range(text: str) -> NodeRange:
    """Read ``3``, ``2..4`` or torchrun's ``2:4``; raises ValueError."""
    match = NODES.fullmatch(text.strip())
    if not match:
        raise ValueError(f"nodes is {text!r}; write a number such as 4, or MIN..MAX such as 2..4")
    return NodeRange(int(match[1]), int(match[2] or match[1]))
