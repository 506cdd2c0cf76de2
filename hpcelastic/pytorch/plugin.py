"""What torch loads of this package at the start of every torchrun: next to nothing, until a backend of ours is chosen.

The entry points ``torchrun.handlers`` in pyproject.toml name these functions; each returns one that creates handlers.
"""

import importlib
from collections.abc import Callable
from typing import Any

Create = Callable[[Any], Any]
"""From torch's RendezvousParameters to its RendezvousHandler."""


def hpcelastic() -> Create:
    """The backend ``hpcelastic``."""
    return lambda params: _loaded("torchrun").create_handler(params)


def hpcelastic_dynamic() -> Create:
    """The backend ``hpcelastic-dynamic``."""
    return lambda params: _loaded("rendezvous_backend").create_dynamic_handler(params)


def _loaded(name: str) -> Any:
    return importlib.import_module(f"hpcelastic.pytorch.{name}")
