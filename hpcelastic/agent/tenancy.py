"""Several agents of one run on one machine, each under a name of its own.

Two jobs may share a node, each with its own GPUs and processors, and start at the same moment. So a name is held as an
address of the machine's own sockets, in the abstract namespace (unix(7)): it is free or taken for all at once, is no
file that somebody could leave behind, and is free again when its holder has died.
"""

import contextlib
import hashlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

from hpcelastic.agent.node import Place, already_here
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths, safe_name


@contextlib.contextmanager
def settled(paths: RunPaths, place: Place) -> Iterator[Place]:
    """``place`` with a name that no other agent on this machine has in this run, as long as the context lasts.

    Where another job's agent has the node's name, it is ``NAME.jJOB``, and stays that when the job is requeued.
    NameTaken if the other agent is of the same job: the two would fight for the same GPUs.
    """
    with contextlib.ExitStack() as held:
        ours, name = _address(paths, place.name, place.job), _address(paths, place.name)
        if not _hold(held, ours):
            raise already_here(place.name, _holder(ours))
        own = f"{place.name}.j{place.job}"
        if backend_of(paths).leases(of=safe_name(own)) or not _hold(held, name):
            if not place.job:
                raise already_here(place.name, _holder(name))
            place = replace(place, name=own, host=place.host or place.name)
        yield place


def places(first: Place) -> Iterator[Place]:
    """The places of agents that start on one machine without knowing of each other: ``n1``, ``n1.2``, ``n1.3``, ..."""
    yield first
    for number in itertools.count(2):
        yield replace(first, name=f"{first.name}.{number}", host=first.host or first.name)


def _address(paths: RunPaths, *words: str) -> bytes:
    run = os.path.realpath(paths.root)
    told = "\0".join((str(os.getuid()), run, *words))
    return b"\0hpcelastic/" + hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest().encode()


def _hold(held: contextlib.ExitStack, address: bytes) -> bool:
    """Take the address until ``held`` ends; False if another process has it."""
    holder = held.enter_context(socket.socket(socket.AF_UNIX))
    try:
        holder.bind(address)
    except OSError:
        return False
    holder.listen()
    return True


def _holder(address: bytes) -> int:
    """The process that holds the address; 0 if it can't be seen from here."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        asking.connect(address)
        pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid
    return 0
