"""The sockets of torch's process groups.

A collective of gloo that waits for a dead or stopped peer ends when the sockets to all peers are shut down. Aborting
the group, or setting another time-out, has no effect on it. torch does not name these sockets, so they are found by
comparing the open descriptors before and after each creation of a group. Sockets that the script opens by itself are
not touched.
"""

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from hpcelastic.ipc.marks import MarkKind

from .context import context
from .control_page import mark


class GroupSockets:
    """The sockets of all process groups that are created from now on, and those to the store of the round."""

    def __init__(self) -> None:
        self._found: set[tuple[int, int]] = set()
        """Descriptors of sockets, each with the inode of its socket, because descriptors are used again."""

        self._before: set[tuple[int, int]] | None = None
        """The sockets that were open before the creation that is in progress."""

        self._lock = threading.Lock()
        self._watch_creations()

    def shut_down(self, store_port: int) -> None:
        """Shut down all sockets of process groups, and all connections to the store at ``store_port``."""
        with self._lock:
            current, before = _sockets(), self._before
            found = {each for each in current if each in self._found or (before is not None and each not in before)}
        for fd, inode in current:
            _shut_down(fd, inode, store_port, belongs=(fd, inode) in found)

    def forget(self) -> None:
        """Forget the sockets of groups that have been destroyed."""
        with self._lock:
            self._found.clear()

    def _watch_creations(self) -> None:
        # All ways to create a process group lead to this function: init_process_group, new_group and split_group.
        import torch.distributed.distributed_c10d as c10d

        create: Callable[..., Any] = c10d._new_process_group_helper

        @functools.wraps(create)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._before = _sockets()
            try:
                group = create(*args, **kwargs)
                mark(MarkKind.GROUP, context().round)
                return group
            finally:
                with self._lock:
                    self._found |= _sockets() - self._before
                    self._before = None

        c10d._new_process_group_helper = watched


def _sockets() -> set[tuple[int, int]]:
    """Return the descriptor and the inode of every socket of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile, or is no socket
            target = os.readlink(f"/proc/self/fd/{name}")
            found.add((int(name), int(target.removeprefix("socket:[").removesuffix("]"))))
    return found


def _shut_down(fd: int, inode: int, store_port: int, *, belongs: bool) -> None:
    """Shut down a TCP connection if it ``belongs`` to a group, or leads to the store."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        if os.fstat(copy.fileno()).st_ino != inode or copy.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return  # gloo aborts the process if it cannot accept connections
        if belongs or copy.getpeername()[1] == store_port:
            copy.shutdown(socket.SHUT_RDWR)
