"""How agents are started in a container: words for srun, and what stands before Python. Pure."""

import shlex
from pathlib import Path

from hpcelastic.config import SlurmSettings
from hpcelastic.config.options import as_words, flags
from hpcelastic.errors import ConfigError


def step_words(slurm: SlurmSettings, seen: tuple[Path, ...]) -> list[str]:
    """What srun is given for pyxis; ``seen`` are directories to mount where they are, the working directory first."""
    box = slurm.container
    if box.image is None or box.runtime != "pyxis":
        return []
    mounts = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*map(_mountable, seen), *box.mounts)]
    ours = {"container-image": box.image, "container-mounts": ",".join(mounts), "container-workdir": str(seen[0])}
    return as_words(flags({**ours, **box.options}))


def python_command(slurm: SlurmSettings, seen: tuple[Path, ...]) -> str | None:
    """The shell's words that start Python in the container; None without one. ``seen`` as for `step_words`."""
    box = slurm.container
    if box.image is None:
        return None
    if box.runtime == "pyxis":
        return shlex.quote(box.python)
    ours = {"nv": asks_for_gpus(slurm), "bind": (*map(_mountable, seen), *box.mounts), "pwd": str(seen[0])}
    given = {name: value if isinstance(value, tuple) else (value,) for name, value in {**ours, **box.options}.items()}
    words = [word for name, each in given.items() for value in each for word in as_words(flags({name: value}))]
    return shlex.join([box.runtime, "exec", *words, box.image, box.python])


def asks_for_gpus(slurm: SlurmSettings) -> bool:
    """Whether the job will have GPUs."""
    gres = str(flags(slurm.options).get("gres", ""))
    named = any(name.startswith("gpus") for name in flags(slurm.options))
    return slurm.gpus_per_node not in (None, 0, "0") or "gpu" in gres or named


def _mountable(directory: Path) -> str:
    if {":", ","} & set(str(directory)):
        raise ConfigError(f"{directory}: cannot be mounted in a container, for its ':' or ','; use another directory")
    return str(directory)
