"""hpcelastic: elastic, fault-tolerant PyTorch training on SLURM clusters.

The names are loaded on first use. An agent needs none of them, so that it starts in milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcelastic.api import Run, Runs, RunStatus, executor, submit, sweep
    from hpcelastic.errors import ConfigError, HpcElasticError, RunFailed, SlurmError, StoreError
    from hpcelastic.pytorch import RunStore

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
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

_API = {"Run", "RunStatus", "Runs", "executor", "submit", "sweep"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hpcelastic' has no attribute {name!r}")
    return getattr(importlib.import_module("hpcelastic.api" if name in _API else "hpcelastic.errors"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def store() -> "RunStore":
    """Return the store of this worker's run, for small values. It outlives rounds, restarts, requeues and agents.

    Each call returns the same object. `hpcelastic.training.store` is the store of a single round. Workers can use the
    store of the run for ``init_process_group`` too, with a prefix for each round, so that they never meet workers of an
    earlier round::

        here = dist.PrefixStore(f"round {os.environ['HPCELASTIC_ROUND']}", hpcelastic.store())
        dist.init_process_group("gloo", store=here, rank=rank, world_size=world_size)

    Raises ``ConfigError`` outside a run, ``StoreError`` if the run's directory cannot be used.
    """
    run_store: RunStore = importlib.import_module("hpcelastic.pytorch").run_store()
    return run_store
