"""A directory of a worker on its own machine, for files that it needs for a short time."""

import atexit
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from .context import context, local_index


def make_local_directory() -> Path:
    """Make an empty directory in TMPDIR, which only this user can read. It is removed when the process ends.

    If the process is killed, the directory stays. In a run its name follows from the run, the node and the number of
    the worker there, so the next process in this place removes it first. Raises OSError if it belongs to another user.
    """
    worker = context()
    if worker.run_dir is None:
        path = Path(tempfile.mkdtemp(prefix="hpcelastic-"))
    else:
        place = (str(os.getuid()), os.path.realpath(worker.run_dir), worker.node, str(local_index()))
        name = hashlib.sha256("\0".join(place).encode(errors="surrogateescape")).hexdigest()[:32]
        path = Path(tempfile.gettempdir(), f"hpcelastic-{name}")
        if os.path.lexists(path):
            shutil.rmtree(path)
        path.mkdir(mode=0o700)  # raises an error if another process has made it meanwhile
    atexit.register(remove_local_directory, path)
    return path


def remove_local_directory(path: Path) -> None:
    """Remove a directory that `make_local_directory` has returned, if that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    atexit.unregister(remove_local_directory)  # another process may need the name before this one ends
