"""Workers' variables in this process's own environment, while an external agent in this process starts workers."""

import os
from collections.abc import Mapping
from multiprocessing import resource_tracker


class ExportedEnvironment:
    """Environment variables for the processes that start while they are set.

    One of them is the mark by which the guard recognizes workers, so no other process may start meanwhile.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str]) -> None:
        """Set ``variables``, in place of those that were set before."""
        self.remove()
        # multiprocessing starts its tracker with its first worker. The tracker serves the whole process and must
        # outlive the worker, so it must not inherit the mark.
        resource_tracker.ensure_running()
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def remove(self) -> None:
        """Restore the previous value of each variable. No effect if none is set."""
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
