"""Adaptors of hpcelastic to torch's interfaces, for use by PyTorch's own programs.

Each name is imported at its first use, because every torchrun loads this package where it is installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .etcd_server import EtcdServer
    from .etcd_store import EtcdClient, EtcdStore
    from .rendezvous_backend import FileRendezvousBackend
    from .store import RunStore, run_store

__all__ = ["EtcdClient", "EtcdServer", "EtcdStore", "FileRendezvousBackend", "RunStore", "run_store"]

_MODULES = {
    "EtcdClient": "etcd_store",
    "EtcdServer": "etcd_server",
    "EtcdStore": "etcd_store",
    "FileRendezvousBackend": "rendezvous_backend",
    "RunStore": "store",
    "run_store": "store",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
