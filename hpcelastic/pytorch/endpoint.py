"""The directory of a run, from the flags of torchrun."""

from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousParameters

from hpcelastic.config.endpoint import bare_name_error, is_bare_name
from hpcelastic.errors import ConfigError
from hpcelastic.storage.home import expand_home
from hpcelastic.storage.paths import safe_name


def run_directory(params: RendezvousParameters) -> Path:
    """Return the run's directory, ``params.endpoint``/``params.run_id``. Raises ValueError that names a wrong flag."""
    try:
        directory = expand_home(params.endpoint or "")
    except ConfigError as error:
        raise ValueError(f"--rdzv-endpoint: {error}") from None
    if not params.endpoint or (":" in params.endpoint and not directory.exists()):
        raise ValueError(
            f"--rdzv-endpoint is {params.endpoint!r}; the backend {params.backend} takes a directory that all nodes "
            "share, such as /scratch/me/runs, not a host"
        )
    if is_bare_name(params.endpoint):
        raise ValueError(bare_name_error("--rdzv-endpoint", params.endpoint))
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--rdzv-endpoint is {params.endpoint!r}, a file; name a directory that all nodes share")
    if not params.run_id or params.run_id != safe_name(params.run_id) or params.run_id.startswith("."):
        raise ValueError(
            f"--rdzv-id is {params.run_id!r}; it names a directory: use letters, digits, '.', '_' and '-', the same "
            "on all nodes"
        )
    return directory.absolute() / params.run_id
