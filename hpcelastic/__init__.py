"""hpcelastic: elastic, fault-tolerant PyTorch training on SLURM clusters.

The names are loaded on first use. An agent needs none of them, so that it starts in milliseconds.
"""

from typing import TYPE_CHECKING

from hpcelastic.lazy_names import lazy_names
from hpcelastic.version import __version__

if TYPE_CHECKING:
    from hpcelastic.api import Run, Runs, RunStatus, executor, submit, sweep
    from hpcelastic.errors import ConfigError, CrashLoop, HpcElasticError, RunFailed, SlurmError, StoreError
    from hpcelastic.pytorch import RunStore

__all__ = [
    "ConfigError",
    "CrashLoop",
    "HpcElasticError",
    "Run",
    "RunFailed",
    "RunStatus",
    "Runs",
    "SlurmError",
    "StoreError",
    "__version__",
    "executor",
    "store",
    "submit",
    "sweep",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Run", "RunStatus", "Runs", "executor", "submit", "sweep"), ".api"),
        **dict.fromkeys(("ConfigError", "CrashLoop", "HpcElasticError", "RunFailed"), ".errors"),
        **dict.fromkeys(("SlurmError", "StoreError"), ".errors"),
    },
)


def store() -> "RunStore":
    """Return the store of this worker's run, for small values. It outlives rounds, restarts, requeues and agents.

    Each call returns the same object. `hpcelastic.training.store` is the store of a single round. Workers can use the
    store of the run for ``init_process_group`` too, with a prefix for each round, so that they never meet workers of an
    earlier round::

        here = dist.PrefixStore(f"round {os.environ['HPCELASTIC_ROUND']}", hpcelastic.store())
        dist.init_process_group("gloo", store=here, rank=rank, world_size=world_size)

    Raises ``ConfigError`` outside a run, ``StoreError`` if the run's directory cannot be used.
    """
    from hpcelastic.pytorch import run_store  # it imports torch

    return run_store()
