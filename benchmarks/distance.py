"""A filesystem that is far away, as this process sees it: each operation on metadata takes so much longer, and counts.

Python tells of most operations by audit events, before they begin; the rest is wrapped. A mount that is slow would not
do: the kernel lets one change of a directory through at a time, so that all nodes that share a mount here would wait
for each other's delays, as nodes with a kernel each never do.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("look up", "list", "open", "create", "rename", "remove", "sync", "lock", "attributes")

_EVENTS = {
    "os.listdir": "list",
    "os.scandir": "list",
    "os.link": "create",
    "os.symlink": "create",
    "os.mkdir": "create",
    "os.rename": "rename",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.utime": "attributes",
    "os.chmod": "attributes",
}
"""Audit events whose first argument is a path; source: the table in the documentation of Python's sys.audit."""

_WRAPPED = {"stat": "look up", "lstat": "look up", "readlink": "look up", "fsync": "sync"}
"""Functions of os that raise no audit event."""


class Distance:
    """Counts, and delays by ``delay`` seconds, what this process does below ``root``, from now to its end."""

    def __init__(self, root: Path, delay: float) -> None:
        self._root = str(root)
        self._delay = delay
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        for name, kind in _WRAPPED.items():
            setattr(os, name, self._wrapped(getattr(os, name), kind))
        sys.addaudithook(self._heard)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._go(args[0], "create" if args[2] & os.O_CREAT else "open")
        elif event == "fcntl.flock":
            self._go(args[0], "lock")
        elif event in _EVENTS:
            self._go(args[0], _EVENTS[event])

    def _wrapped(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def far(path: Any, *args: Any, **kwargs: Any) -> Any:
            self._go(path, kind)
            return function(path, *args, **kwargs)

        return far

    def _go(self, path: Any, kind: str) -> None:
        """To the filesystem; an open file is taken for one of it."""
        if isinstance(path, int) or (isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._root)):
            with self._lock:
                self._counts[kind] += 1
            if self._delay:
                time.sleep(self._delay)
