"""The part of this package that torch imports at the start of every torchrun. It is small, for a fast start.

The entry points ``torchrun.handlers`` in pyproject.toml name these functions. Each returns a function that creates
handlers; the implementation of a backend is imported only when that function is called.
"""

import importlib
from collections.abc import Callable
from typing import Any

Create = Callable[[Any], Any]
"""A function that takes torch's RendezvousParameters and returns a RendezvousHandler."""


def hpcelastic() -> Create:
    """Return the function that creates handlers of the backend ``hpcelastic``."""
    return lambda params: _load("torchrun").create_handler(params)


def hpcelastic_dynamic() -> Create:
    """Return the function that creates handlers of the backend ``hpcelastic-dynamic``."""
    return lambda params: _load("rendezvous_backend").create_dynamic_handler(params)


def _load(name: str) -> Any:
    return importlib.import_module(f"hpcelastic.pytorch.{name}")
