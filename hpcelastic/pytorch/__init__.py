"""What PyTorch's own programs can use of hpcelastic: adaptors to torch's interfaces. Imports torch."""

from .store import RunStore

__all__ = ["RunStore"]
