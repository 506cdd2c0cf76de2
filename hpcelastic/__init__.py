"""hpcelastic: elastic, fault-tolerant PyTorch training on SLURM clusters.

The names here are loaded when they are first used: an agent starts in milliseconds because it needs none of them.
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


importlib.import_module("hpcelastic.store")  # first, because the import gives the package the name of the function


def store() -> "RunStore":
    """The store of this worker's run, for small facts of your own: it outlives rounds, restarts, requeues and agents.

    The same object at each call. What only the ranks of one round share is in `hpcelastic.training.store`. Workers may
    meet by it, with a prefix for each round, so that none meets one of a round before::

        here = dist.PrefixStore(f"round {os.environ['HPCELASTIC_ROUND']}", hpcelastic.store())
        dist.init_process_group("gloo", store=here, rank=rank, world_size=world_size)

    Raises ``ConfigError`` outside a run, ``StoreError`` where the run's directory can't be used.
    """
    run_store: RunStore = importlib.import_module("hpcelastic.pytorch").run_store()
    return run_store
