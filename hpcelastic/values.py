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


def save_pickle(path: Path, value: Any) -> None:
    """Pickle ``value``, functions and classes of a notebook included; ConfigError if that can't be done."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(
            f"the function or its arguments cannot be pickled ({type(error).__name__}: {error}); pass plain values, "
            "and open files, locks and connections inside the function"
        ) from error
    files.publish(path, data)


def load_pickle(path: Path) -> Any:
    """What `save_pickle` wrote; StoreError if somebody else could have written it."""
    for part in (path, path.parent):
        status = part.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreError(f"{part}: others may write here, so its pickle is not loaded; chown it, or chmod go-w")
    return pickle.loads(path.read_bytes())  # noqa: S301  # checked just above; see the module's docstring


def save(path: Path, value: Any) -> None:
    """Keep ``value`` at ``path`` plus ``.json``, or ``.pkl`` where JSON would change it."""
    try:
        text = json.dumps(value)
        plain = json.loads(text) == value and type(value) in (type(None), bool, int, float, str, list, dict)
    except (TypeError, ValueError):
        plain = False
    if plain and _only_lists(value):
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


def _only_lists(value: Any) -> bool:
    """True without a tuple, which JSON would give back as a list, and with str keys only."""
    if isinstance(value, dict):
        return all(type(key) is str and _only_lists(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_only_lists, value))
    return not isinstance(value, tuple)
