"""Start of agents in a container: the options of srun, and the command that runs Python. Pure."""

import shlex
from pathlib import Path

from hpcelastic.config import SlurmSettings
from hpcelastic.config.options import as_words, flags
from hpcelastic.errors import ConfigError


def pyxis_options(slurm: SlurmSettings, directories: tuple[Path, ...]) -> list[str]:
    """Return srun's options for pyxis.

    The container mounts ``directories`` at their own paths. The first of them is the working directory.
    """
    container = slurm.container
    if container.image is None or container.runtime != "pyxis":
        return []
    mounts = [
        mount if ":" in mount else f"{mount}:{mount}" for mount in (*map(_mountable, directories), *container.mounts)
    ]
    options = {
        "container-image": container.image,
        "container-mounts": ",".join(mounts),
        "container-workdir": str(directories[0]),
    }
    return as_words(flags({**options, **container.options}))


def python_command(slurm: SlurmSettings, directories: tuple[Path, ...]) -> str | None:
    """Return the shell command that starts Python in the container; None without a container.

    ``directories`` are as for `pyxis_options`.
    """
    container = slurm.container
    if container.image is None:
        return None
    if container.runtime == "pyxis":
        return shlex.quote(container.python)
    binds = (*map(_mountable, directories), *container.mounts)
    options = {"nv": requests_gpus(slurm), "bind": binds, "pwd": str(directories[0]), **container.options}
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in options.items()}
    words = [word for name, each in values.items() for value in each for word in as_words(flags({name: value}))]
    return shlex.join([container.runtime, "exec", *words, container.image, container.python])


def requests_gpus(slurm: SlurmSettings) -> bool:
    """Return whether the job requests GPUs."""
    gres = str(flags(slurm.options).get("gres", ""))
    named = any(name.startswith("gpus") for name in flags(slurm.options))
    return slurm.gpus_per_node not in (None, 0, "0") or "gpu" in gres or named


def _mountable(directory: Path) -> str:
    if {":", ","} & set(str(directory)):
        raise ConfigError(
            f"{directory}: cannot be mounted in a container, because it contains ':' or ','; use another directory"
        )
    return str(directory)
