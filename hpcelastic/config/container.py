"""Settings of the container that agents and workers run in. Pure: plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcelastic.config.options import Option, check_options

MOUNT = re.compile(r"/[^:,]*(:/[^:,]*(:[A-Za-z+]+)?)?")


@dataclass(frozen=True)
class ContainerSettings:
    """A container that agents and workers run in. Its image holds Python, all that workers import, and hpcelastic of
    the version that submits; SLURM's commands need not be in it."""

    image: str | None = None
    """The image, as its runtime takes it: a file such as ``torch.sif``, or a name; no container where not given."""

    runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    """What starts it: a command on the nodes, or pyxis, a plugin of srun."""

    mounts: tuple[str, ...] = ()
    """What it sees beside the run's and the working directory: ``/DIRECTORY``, ``/FROM:/TO`` or ``/FROM:/TO:ro``."""

    python: str = "python3"
    """The image's Python."""

    options: Mapping[str, Option] = field(default_factory=dict)
    """Further long options, verbatim: of ``apptainer exec``, or of srun for pyxis; ``nv: false`` leaves ours out."""

    def __post_init__(self) -> None:
        for mount in self.mounts:
            if not MOUNT.fullmatch(mount):
                raise ValueError(
                    f"slurm.container.mounts has {mount!r}; write /DIRECTORY, /FROM:/TO or /FROM:/TO:ro, each absolute"
                )
        check_options("slurm.container.options", self.options, "srun" if self.runtime == "pyxis" else self.runtime)
