"""Paths below the home directory of a user."""

import os
from pathlib import Path

from hpcelastic.errors import ConfigError


def expand_home(path: str) -> Path:
    """Return ``path`` with ``~`` or ``~USER`` at its beginning replaced by the home directory of this user or of USER.

    Raises ConfigError if this machine does not know that directory.
    """
    expanded = os.path.expanduser(path)
    if path.startswith("~") and expanded == path:
        user = path.partition("/")[0]
        raise ConfigError(f"{path}: this machine does not know the home directory {user}; write the whole path")
    return Path(expanded)
