"""The process groups of a process that stays when its round ends.

A collective of gloo that waits for a dead or stopped peer ends when the sockets to all peers are shut down. Aborting
the group, or setting another time-out, has no effect on it. torch does not name these sockets, so they are found by
comparing the open descriptors before and after each creation of a group. Sockets that the script opens by itself are
not touched. A collective of a GPU ends when its group is aborted; see `hpcelastic.training.device_groups`.

The creation of a communicator of NCCL cannot be aborted. It waits at listening sockets for peers, and ends when these
are shut down. They are known if it is created in `ProcessGroups.connecting`.
"""

import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hpcelastic.ipc.marks import MarkKind

from .context import context
from .control_page import mark
from .device_groups import abort_device_groups

Value = TypeVar("Value")


class ProcessGroups:
    """All process groups that are created from now on, and the connections to the store of the round."""

    def __init__(self) -> None:
        self._excepthook = sys.excepthook
        self._found: set[tuple[int, int]] = set()
        """Descriptors of sockets, each with the inode of its socket, because descriptors are used again."""

        self._before: set[tuple[int, int]] | None = None
        """The sockets that were open before the creation that is in progress."""

        self._before_connecting: set[tuple[int, int]] | None = None
        """The sockets that were open before the communicator of a GPU, which is being created now."""

        self._lock = threading.Lock()
        self._watch_creations()

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """The creation of a communicator of a GPU. `end_collectives` ends it too, if all groups exist already."""
        with self._lock:
            self._before_connecting = _sockets()
        try:
            yield
        finally:
            with self._lock:
                self._before_connecting = None

    def end_collectives(self, store_port: int) -> None:
        """End all collectives, and all requests to the store at ``store_port``. Called in another thread than these.

        An abort on a GPU takes longer without the connections, so it comes first.
        """
        abort_device_groups()
        with self._lock:
            current, before = _sockets(), self._before
            found = {each for each in current if each in self._found or (before is not None and each not in before)}
            of_nccl = set() if self._before_connecting is None else current - self._before_connecting
        for fd, inode in current:
            _shut_down(fd, inode, store_port, belongs=(fd, inode) in found, of_nccl=(fd, inode) in of_nccl)

    def destroy(self, *, failed: bool) -> None:
        """Destroy all groups, and undo what their creation has changed in this process, also if it has failed.

        If a collective has ``failed``, the groups of a GPU are aborted first: their collectives may never end.
        """
        import torch.distributed.distributed_c10d as c10d

        if failed and has_process_group():
            abort_device_groups()
        if has_process_group():
            with contextlib.suppress(Exception):  # its connections are gone
                c10d.destroy_process_group()
        if has_process_group():  # torch keeps all groups if one of them cannot be shut down
            _forget_groups()
        # The number is part of the names by which ranks meet in the store. torch does not reset it if the creation of
        # the default group has failed; the other ranks, which begin with 0, would then never meet this one.
        c10d._world.group_count = 0
        sys.excepthook = self._excepthook  # torch has put one before it, with the rank
        with self._lock:
            self._found.clear()
            self._before_connecting = None  # the end of the round may have interrupted what resets it

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


def _forget_groups() -> None:
    """Remove all groups from the tables of torch, as the last part of ``destroy_process_group`` does."""
    import torch.distributed.distributed_c10d as c10d

    c10d._update_default_pg(None)
    world = c10d._world
    for table in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.tags_to_pg,
        world.pg_coalesce_state,
    ):
        table.clear()
    c10d._unregister_all_process_groups()  # type: ignore[attr-defined]  # imported there


def has_process_group() -> bool:
    """Return whether this process has a default process group."""
    dist = sys.modules.get("torch.distributed")  # without it, there is none
    return dist is not None and dist.is_available() and dist.is_initialized()


def _sockets() -> set[tuple[int, int]]:
    """Return the descriptor and the inode of every socket of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile, or is no socket
            target = os.readlink(f"/proc/self/fd/{name}")
            found.add((int(name), int(target.removeprefix("socket:[").removesuffix("]"))))
    return found


def _shut_down(fd: int, inode: int, store_port: int, *, belongs: bool, of_nccl: bool) -> None:
    """Shut down a TCP connection if it ``belongs`` to a group or leads to the store, and each socket of NCCL."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        if os.fstat(copy.fileno()).st_ino != inode or copy.family not in (socket.AF_INET, socket.AF_INET6):
            return
        # gloo aborts the process if it cannot accept connections.
        listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if of_nccl or (not listens and (belongs or copy.getpeername()[1] == store_port)):
            copy.shutdown(socket.SHUT_RDWR)


def place_in_group() -> tuple[int, int]:
    """Return the rank and the number of ranks of this process in the default process group; 0 and 1 without one."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if has_process_group() else (0, 1)


def gather_objects(value: Value) -> list[Value]:
    """Return the values of all ranks; only this one without a process group.

    With NCCL, ``torch.cuda.set_device`` must have been called.
    """
    import torch.distributed as dist

    if not has_process_group():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
