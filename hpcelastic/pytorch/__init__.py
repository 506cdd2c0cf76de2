"""What PyTorch's own programs can use of hpcelastic: adaptors to torch's interfaces.

The names here are loaded when they are first used: torchrun loads this package wherever it is installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rendezvous_backend import FileRendezvousBackend
    from .store import RunStore, run_store

__all__ = ["FileRendezvousBackend", "RunStore", "run_store"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "rendezvous_backend" if name == "FileRendezvousBackend" else "store"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
