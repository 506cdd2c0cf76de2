"""A directory of a worker on its own machine, for files that it needs for a short time."""

import atexit
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from .context import context, local_index


class LocalDirectory:
    """An empty directory in TMPDIR, which only this user can read. It is removed when the process ends.

    If the process is killed, the directory stays. In a run its name follows from the run, the node, the number of the
    worker there, and ``purpose``, so the next process in this place removes it first. ``purpose`` is the directory to
    which the files belong. Raises OSError if the path belongs to another user.
    """

    def __init__(self, purpose: Path) -> None:
        self.path = _make(purpose)
        atexit.register(self.remove)

    def remove(self) -> None:
        """Remove the directory, if that is possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        atexit.unregister(self.remove)  # another process may need the name before this one ends


def _make(purpose: Path) -> Path:
    worker = context()
    if worker.run_dir is None:
        return Path(tempfile.mkdtemp(prefix="hpcelastic-"))
    directories = os.path.realpath(worker.run_dir), os.path.realpath(purpose)
    place = (str(os.getuid()), worker.node, str(local_index()), *directories)
    name = hashlib.sha256("\0".join(place).encode(errors="surrogateescape")).hexdigest()[:32]
    path = Path(tempfile.gettempdir(), f"hpcelastic-{name}")
    if os.path.lexists(path):
        shutil.rmtree(path)
    path.mkdir(mode=0o700)  # raises an error if another process has made it meanwhile
    return path
