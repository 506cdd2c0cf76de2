"""Python values of the user's code in the run's directory: the entry point and its return values.

They are never coordination state. A value that JSON represents exactly is stored as JSON. All other values are pickled,
because JSON cannot represent functions, tensors and arrays. A pickle is loaded only if this user owns its file and
directory, and no other user can write to them. An attacker with these permissions could change the user's script too.
"""

import json
import os
import pickle
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage import files

_CALL = (
    "the function or its arguments",
    "pass plain values, and open files, locks and connections inside the function",
)
_RESULT = ("the return value", "return plain values, arrays or tensors")


def save_pickle(path: Path, value: Any) -> None:
    """Pickle a return value, also of a class of a notebook. Raises ConfigError if it cannot be pickled."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        raise _unpicklable(_RESULT, error) from error
    files.publish(path, data, private=True)


def _unpicklable(about: tuple[str, str], error: Exception) -> ConfigError:
    what, remedy = about
    return ConfigError(f"{what} cannot be pickled ({type(error).__name__}: {error}); {remedy}")


def save_call(path: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Store a call for `load_call`, with the ``sys.path`` of this process."""
    files.publish(path, pickled_call(function, args), private=True)


def pickled_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return the bytes that `save_call` writes. Raises ConfigError if the call cannot be pickled."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, args))
    except Exception as error:
        raise _unpicklable(_CALL, error) from error
    return pickle.dumps((sys.path, call))


def load_call(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and the arguments that `save_call` stored. Raises StoreError like `load_pickle`."""
    return _unpickle_call(load_pickle(path))


def loaded_call(pickled: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the call in the bytes of `pickled_call`, which were in a pickle that `load_pickle` has checked."""
    return _unpickle_call(pickle.loads(pickled))  # noqa: S301  # see load_pickle


def _unpickle_call(stored: tuple[list[str], bytes]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    directories, call = stored
    sys.path.extend(directory for directory in directories if directory not in sys.path)
    function, args = pickle.loads(call)  # noqa: S301  # part of what load_pickle has checked
    return function, args


def load_pickle(path: Path) -> Any:
    """Return the value that `save_pickle` wrote. Raises StoreError if another user could have written it."""
    for part in (path, path.parent):
        status = part.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreError(
                f"{part}: other users can write to it, so its pickle is not loaded; use chown or chmod go-w"
            )
    return pickle.loads(path.read_bytes())  # noqa: S301  # checked above; see the docstring of the module


def save(path: Path, value: Any) -> None:
    """Store a return value at ``path`` plus ``.json``, or ``.pkl`` if JSON would change it."""
    try:
        plain = _plain(value) and json.loads(json.dumps(value)) == value  # NaN is not equal to itself
    except (ValueError, RecursionError):
        plain = False
    if plain:
        files.publish(path.with_name(path.name + ".json"), files.to_json(value))
    else:
        save_pickle(path.with_name(path.name + ".pkl"), value)


def load(path: Path) -> Any:
    """Return the value that `save` stored at ``path``. Raises KeyError if there is none."""
    for suffix in (".json", ".pkl"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            return files.read_json(file) if suffix == ".json" else load_pickle(file)
    raise KeyError(str(path))


def _plain(value: Any) -> bool:
    """True if all parts have exactly the types that JSON returns: no tuple, no NumPy number, only str keys."""
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_plain, value))
    return type(value) in (type(None), bool, int, float, str)
