"""Workers' variables in this process's own environment, while an external agent in this process starts workers."""

import os
from collections.abc import Callable, Mapping
from multiprocessing import resource_tracker

_called_in_forks: list[Callable[[], None]] = []
"""Functions that a fork of this process calls first, one for each environment that is set."""


def _forked() -> None:
    called = _called_in_forks.copy()
    _called_in_forks.clear()  # a fork of a fork stays in its process group
    for call in called:
        call()


os.register_at_fork(after_in_child=_forked)


class ExportedEnvironment:
    """Environment variables for the processes that start while they are set.

    One of them is the mark by which the guard recognizes workers, so no other process may start meanwhile. A process
    that is forked meanwhile calls ``in_fork`` first.
    """

    def __init__(self, in_fork: Callable[[], None]) -> None:
        self._before: dict[str, str | None] = {}
        self._in_fork = in_fork

    def set(self, variables: Mapping[str, str]) -> None:
        """Set ``variables``, in place of those that were set before."""
        self.remove()
        # multiprocessing starts its tracker with its first worker. The tracker serves the whole process and must
        # outlive the worker, so it must not inherit the mark.
        resource_tracker.ensure_running()
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        _called_in_forks.append(self._in_fork)

    def remove(self) -> None:
        """Restore the previous value of each variable. No effect if none is set."""
        if self._in_fork in _called_in_forks:
            _called_in_forks.remove(self._in_fork)
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
