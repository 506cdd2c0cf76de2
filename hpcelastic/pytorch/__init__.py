"""What PyTorch's own programs can use of hpcelastic: adaptors to torch's interfaces. Imports torch."""

from .rendezvous_backend import FileRendezvousBackend
from .store import RunStore

__all__ = ["FileRendezvousBackend", "RunStore"]
