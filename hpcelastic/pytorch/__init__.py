"""Adaptors of hpcelastic to torch's interfaces, for use by PyTorch's own programs.

Each name is imported at its first use, because every torchrun loads this package where it is installed.
"""

from typing import TYPE_CHECKING

from hpcelastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from .etcd_server import EtcdServer
    from .etcd_store import EtcdClient, EtcdStore
    from .rendezvous_backend import FileRendezvousBackend
    from .store import RunStore, run_store

__all__ = ["EtcdClient", "EtcdServer", "EtcdStore", "FileRendezvousBackend", "RunStore", "run_store"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EtcdClient": ".etcd_store",
        "EtcdServer": ".etcd_server",
        "EtcdStore": ".etcd_store",
        "FileRendezvousBackend": ".rendezvous_backend",
        "RunStore": ".store",
        "run_store": ".store",
    },
)
