"""Where a run is, as torchrun's flags say."""

from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousParameters

from hpcelastic.config.endpoint import bare_name_error, is_bare_name
from hpcelastic.storage.paths import safe_name


def run_directory(params: RendezvousParameters) -> Path:
    """The run's directory: ``params.run_id`` in the directory ``params.endpoint``. ValueError names a wrong flag."""
    directory = Path(params.endpoint or "").expanduser()
    if not params.endpoint or (":" in params.endpoint and not directory.exists()):
        raise ValueError(
            f"--rdzv-endpoint is {params.endpoint!r}; the backend {params.backend} takes a directory that all nodes "
            "share, such as /scratch/me/runs, and no host"
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
