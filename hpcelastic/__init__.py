"""hpcelastic: elastic, fault-tolerant PyTorch training on SLURM clusters.

The names here are loaded when they are first used: an agent starts in milliseconds because it needs none of them.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcelastic.api import Run, Runs, RunStatus, executor, submit, sweep
    from hpcelastic.errors import ConfigError, HpcElasticError, RunFailed, SlurmError, StoreError
    from hpcelastic.pytorch import RunStore
    from hpcelastic.pytorch import run_store as store

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


class _Store(ModuleType):
    """The package `hpcelastic.store`, which can be called too: whoever imports it takes the name from the function."""

    def __call__(self) -> "RunStore":
        run_store: RunStore = importlib.import_module("hpcelastic.pytorch").run_store()
        return run_store


importlib.import_module("hpcelastic.store").__class__ = _Store
