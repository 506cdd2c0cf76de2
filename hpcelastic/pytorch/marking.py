"""The environment of workers that another agent starts, in this process's own environment while it starts them."""

import os
from collections.abc import Mapping
from multiprocessing import resource_tracker


class Exported:
    """Variables that processes inherit which are started while they are set.

    Among them is the mark by which the guard knows workers, so nothing else must be started meanwhile.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str]) -> None:
        """Set ``variables``, in place of those that were set last."""
        self.remove()
        # multiprocessing starts it with its first worker; it serves the whole process, and must outlive the worker.
        resource_tracker.ensure_running()
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def remove(self) -> None:
        """Give each variable the value that it had before; no effect if none is set."""
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
