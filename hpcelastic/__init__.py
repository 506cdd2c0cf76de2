"""hpcelastic: elastic, fault-tolerant PyTorch training on SLURM clusters.

The names here are loaded when they are first used: an agent starts in milliseconds because it needs none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcelastic.api import Run, Runs, RunStatus, executor, submit, sweep
    from hpcelastic.errors import ConfigError, HpcElasticError, RunFailed, SlurmError, StoreError

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
    "submit",
    "sweep",
]

_API = {"Run", "RunStatus", "Runs", "executor", "submit", "sweep"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hpcelastic' has no attribute {name!r}")
    return getattr(importlib.import_module("hpcelastic.api" if name in _API else "hpcelastic.errors"), name)
