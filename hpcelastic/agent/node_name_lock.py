"""A lock on a node's name, for several agents of one run on one machine.

Two jobs may share a node, each with its own GPUs and processors, and start at the same moment. So each name is locked
by an address in the machine's abstract socket namespace (unix(7)). One process takes it atomically, it leaves no file
behind, and the kernel releases it when its owner dies.
"""

import contextlib
import hashlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hpcelastic.agent.member import NodeIdentity, name_taken_error
from hpcelastic.backends.backend import Backend
from hpcelastic.storage.paths import safe_name


@contextlib.contextmanager
def node_name_lock(backend: Backend, identity: NodeIdentity, *, alone: bool = False) -> Iterator[NodeIdentity]:
    """Lock a name of the node for the duration of the block. Return ``identity`` with that name.

    No other agent of this run on this machine has the same name. If another job's agent has the node's name, it is
    ``NAME.jJOB``, also after the job is requeued. The leases, which tell that, are not read if the job is ``alone``.
    Raises NameTaken if the other agent belongs to the same job: both would use the same GPUs.
    """
    with contextlib.ExitStack() as locks:
        of_job, of_node = _address(backend.root, identity.name, identity.job), _address(backend.root, identity.name)
        if not _lock(locks, of_job):
            raise name_taken_error(identity.name, _owner_pid(of_job))
        own = f"{identity.name}.j{identity.job}"
        requeued = bool(identity.job) and not alone and bool(backend.leases(node_name=safe_name(own)))
        if requeued or not _lock(locks, of_node):
            if not identity.job:
                raise name_taken_error(identity.name, _owner_pid(of_node))
            identity = replace(identity, name=own, host=identity.host or identity.name)
        yield identity


def numbered_identities(first: NodeIdentity) -> Iterator[NodeIdentity]:
    """Yield identities for agents that start independently on one machine: ``n1``, ``n1.2``, ``n1.3``, ..."""
    yield first
    for number in itertools.count(2):
        yield replace(first, name=f"{first.name}.{number}", host=first.host or first.name)


def _address(root: Path, *names: str) -> bytes:
    key = "\0".join((str(os.getuid()), os.path.realpath(root), *names))
    return b"\0hpcelastic/" + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest().encode()


def _lock(locks: contextlib.ExitStack, address: bytes) -> bool:
    """Take the address until ``locks`` closes. Return False if another process has it."""
    owner = locks.enter_context(socket.socket(socket.AF_UNIX))
    try:
        owner.bind(address)
    except OSError:
        return False
    owner.listen()
    return True


def _owner_pid(address: bytes) -> int:
    """Return the id of the process that has the address; 0 if the process cannot be seen from here."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        client.connect(address)
        pid: int = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid
    return 0
