"""What PyTorch's own programs can use of hpcelastic: adaptors to torch's interfaces. Imports torch."""

from typing import TYPE_CHECKING, Any

from .store import RunStore, run_store

if TYPE_CHECKING:
    from .rendezvous_backend import FileRendezvousBackend

__all__ = ["FileRendezvousBackend", "RunStore", "run_store"]


def __getattr__(name: str) -> Any:
    if name != "FileRendezvousBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .rendezvous_backend import FileRendezvousBackend  # a second of imports, for those who need it

    return FileRendezvousBackend
