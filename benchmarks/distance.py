"""A distant filesystem, simulated in this process: each operation on metadata is delayed and counted.

Python reports most operations by audit events before they begin; the other functions are wrapped. A slow mount is not
suitable: the kernel executes changes of a directory one at a time, so all nodes that share a mount on this machine
would wait for each other's delays. Nodes with separate kernels do not.
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
    """Counts this process's operations below ``root`` and delays each by ``delay`` seconds, until the process ends."""

    def __init__(self, root: Path, delay: float) -> None:
        self._root = str(root)
        self._delay = delay
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        for name, kind in _WRAPPED.items():
            setattr(os, name, self._wrapped(getattr(os, name), kind))
        sys.addaudithook(self._audit)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._access(args[0], "create" if args[2] & os.O_CREAT else "open")
        elif event == "fcntl.flock":
            self._access(args[0], "lock")
        elif event in _EVENTS:
            self._access(args[0], _EVENTS[event])

    def _wrapped(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def delayed(path: Any, *args: Any, **kwargs: Any) -> Any:
            self._access(path, kind)
            return function(path, *args, **kwargs)

        return delayed

    def _access(self, path: Any, kind: str) -> None:
        """Count and delay an operation on ``path``. Every open file counts as a file of the filesystem."""
        if isinstance(path, int) or (isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._root)):
            with self._lock:
                self._counts[kind] += 1
            if self._delay:
                time.sleep(self._delay)
