"""A state in a file: what can be saved, and how it is read again without running code."""

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hpcelastic.errors import StoreError

from .archive import check_loadable
from .seals import seal


def write_state(state: dict[str, Any], draft: BinaryIO) -> None:
    """Write a sealed archive of ``state``. Raises ``StoreError`` if it could not be loaded again."""
    import torch

    with unsupported_state():
        torch.save(state, draft)
        draft.flush()
        check_loadable(draft.name)
        seal(draft)


@contextmanager
def unsupported_state() -> Iterator[None]:
    """Convert the errors of pickle into a ``StoreError`` with advice."""
    try:
        yield
    except (pickle.PickleError, AttributeError, TypeError) as error:  # the errors of pickle for unsupported objects
        raise StoreError(
            f"this state cannot be a checkpoint: {_pickle_error_reason(error)}; give tensors, numbers, strings, and "
            "dicts, lists, tuples and sets of them (state_dict() of a model or an optimizer, .item() of a NumPy number)"
        ) from error


def read_state(path: Path, map_location: Any, mmap: bool = False) -> Any:
    """Return the state in an archive. Raises ``StoreError`` if it would have to run code for that."""
    import torch

    try:
        # weights_only: a checkpoint must not be able to run code here.
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise StoreError(
            f"cannot load checkpoint {path}: {_pickle_error_reason(error)}; move it away to load the next older one"
        ) from error


def _pickle_error_reason(error: Exception) -> str:
    # torch's message also advises how to let a checkpoint run code, which is not useful here.
    if found := re.search(r"GLOBAL ([\w.]*\w)", str(error)):
        return f"it holds {found[1]}"
    found = re.search(r"WeightsUnpickler error: (.*)", str(error))
    return found[1] if found else str(error).partition("\n")[0]
