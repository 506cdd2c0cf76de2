"""Adaptors of hpcelastic to torch's interfaces, for use by PyTorch's own programs.

Each name is imported at its first use, because every torchrun loads this package where it is installed.
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
