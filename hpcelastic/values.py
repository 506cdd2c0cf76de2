"""Python values that a user's own code hands over in the run's directory: the entry point, and what it returns.

This is never coordination state. A value that JSON carries is kept as JSON; anything else is pickled, since functions,
tensors and arrays can't travel otherwise. A pickle is loaded only from a file and a directory that belong to us and
that nobody else may write: whoever could change it could change the user's script as well.
"""

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.store import files

_CALL = (
    "the function or its arguments",
    "pass plain values, and open files, locks and connections inside the function",
)
_RESULT = ("the return value", "return plain values, arrays or tensors")


def save_pickle(path: Path, value: Any, about: tuple[str, str] = _CALL) -> None:
    """Pickle ``value``, functions and classes of a notebook included; ConfigError if that can't be done.

    ``about`` is what the error calls the value, and its remedy.
    """
    import cloudpickle

    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        what, remedy = about
        raise ConfigError(f"{what} cannot be pickled ({type(error).__name__}: {error}); {remedy}") from error
    files.publish(path, data)


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
        save_pickle(path.with_name(path.name + ".pkl"), value, _RESULT)


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
