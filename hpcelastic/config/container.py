"""Settings of the container for agents and workers. Pure: plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.config.options import Option, check_options

MOUNT = re.compile(r"/[^:,]*(:/[^:,]*(:[A-Za-z+]+)?)?")


@dataclass(frozen=True)
class ContainerSettings:
    """The container for agents and workers. Its image must contain Python, all packages that workers import, and
    hpcelastic in the version that submits the job. It need not contain SLURM's commands."""

    image: str | None = None
    """The image in the form of the runtime: a file such as ``torch.sif``, or a name. No container if not set."""

    runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    """The container runtime: a command on the nodes, or pyxis, a plugin of srun."""

    mounts: tuple[str, ...] = ()
    """Mounts beside the run's and the working directory: ``/DIRECTORY``, ``/FROM:/TO`` or ``/FROM:/TO:ro``."""

    python: str = "python3"
    """The Python interpreter in the image."""

    options: Mapping[str, Option] = field(default_factory=dict)
    """Other long options, passed verbatim to ``apptainer exec``, or to srun for pyxis. ``nv: false`` removes a default
    option."""

    def __post_init__(self) -> None:
        for mount in self.mounts:
            if not MOUNT.fullmatch(mount):
                raise ValueError(
                    f"slurm.container.mounts has {mount!r}; write absolute paths: /DIRECTORY, /FROM:/TO or /FROM:/TO:ro"
                )
        check_options("slurm.container.options", self.options, "srun" if self.runtime == "pyxis" else self.runtime)
