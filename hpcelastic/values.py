"""Python values that a user's own code hands over in the run's directory: the entry point, and what it returns.

This is never coordination state. A value that JSON carries is kept as JSON; anything else is pickled, since functions,
tensors and arrays can't travel otherwise. A pickle is loaded only from a file and a directory that belong to us and
that nobody else may write: whoever could change it could change the user's script as well.
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
from hpcelastic.store import files

_CALL = (
    "the function or its arguments",
    "pass plain values, and open files, locks and connections inside the function",
)
_RESULT = ("the return value", "return plain values, arrays or tensors")


def save_pickle(path: Path, value: Any) -> None:
    """Pickle a return value, one of a notebook's own classes included; ConfigError if that can't be done."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        raise _unpicklable(_RESULT, error) from error
    files.publish(path, data)


def _unpicklable(about: tuple[str, str], error: Exception) -> ConfigError:
    what, remedy = about
    return ConfigError(f"{what} cannot be pickled ({type(error).__name__}: {error}); {remedy}")


def save_call(path: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Keep a call for `load_call`, with the places where this process finds its modules."""
    files.publish(path, pickled_call(function, args))


def pickled_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """What `save_call` writes; ConfigError if the call can't be pickled."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, args))
    except Exception as error:
        raise _unpicklable(_CALL, error) from error
    return pickle.dumps((sys.path, call))


def load_call(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and the arguments that `save_call` kept. StoreError as `load_pickle`."""
    return _called(load_pickle(path))


def loaded_call(pickled: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The call in what `pickled_call` returned, which was in a pickle that `load_pickle` has checked."""
    return _called(pickle.loads(pickled))  # noqa: S301  # see load_pickle


def _called(kept: tuple[list[str], bytes]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    places, call = kept
    sys.path.extend(place for place in places if place not in sys.path)
    function, args = pickle.loads(call)  # noqa: S301  # part of what load_pickle has checked
    return function, args


def load_pickle(path: Path) -> Any:
    """What `save_pickle` wrote; StoreError if somebody else could have written it."""
    for part in (path, path.parent):
        status = part.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreError(f"{part}: others may write here, so its pickle is not loaded; chown it, or chmod go-w")
    return pickle.loads(path.read_bytes())  # noqa: S301  # checked just above; see the module's docstring


def save(path: Path, value: Any) -> None:
    """Keep a return value at ``path`` plus ``.json``, or ``.pkl`` where JSON would change it."""
    try:
        plain = _plain(value) and json.loads(json.dumps(value)) == value  # unlike itself: NaN
    except (ValueError, RecursionError):
        plain = False
    if plain:
        files.publish(path.with_name(path.name + ".json"), files.to_json(value))
    else:
        save_pickle(path.with_name(path.name + ".pkl"), value)


def load(path: Path) -> Any:
    """What `save` kept at ``path``; KeyError if there is nothing."""
    for suffix in (".json", ".pkl"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            return files.read_json(file) if suffix == ".json" else load_pickle(file)
    raise KeyError(str(path))


def _plain(value: Any) -> bool:
    """True if all parts have exactly the types that JSON gives back: no tuple, no NumPy number, str keys only."""
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_plain, value))
    return type(value) in (type(None), bool, int, float, str)
