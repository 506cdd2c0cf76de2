"""The channels between an agent and a worker: one if its process can stay for the next round, one for snapshots.

The agent listens at Unix sockets in the abstract namespace. A worker connects to them, and both send messages. A
message is one JSON document, sent with the file descriptors that it is about. The kernel tells the agent the process id
of the other end, so a process can speak only for itself.
"""

import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from hpcelastic.ipc.descriptors import receive_fds, send_fds

_CREDENTIALS = struct.Struct("iII")
"""Process id, user id and group id; see SO_PEERCRED in unix(7)."""

_MAX_MESSAGE = 2**17
_MAX_FDS = 4
_BACKLOG = 128


@dataclass(frozen=True)
class Park:
    """The agent ends a round: the worker must leave it, and wait for the next one."""

    round: int


@dataclass(frozen=True)
class Resume:
    """The agent starts a round. Two descriptors are sent with it: the worker's standard output and standard error."""

    round: int
    environ: Mapping[str, str | None] = field(default_factory=dict)
    """The variables that differ from those of the worker's last round; None for one that no longer exists."""


@dataclass(frozen=True)
class Parked:
    """The worker has left a round. It cannot take part in it any more, and waits for the next one."""

    round: int


@dataclass(frozen=True)
class Entered:
    """The worker has entered the function that is called in each round."""

    early_start: bool
    """Whether it can get there before it has a place in a round: it has not created a process group on the way."""


@dataclass(frozen=True)
class Interrupted:
    """A collective of the worker has failed. The worker waits until the agent ends the round."""

    round: int
    error: str


@dataclass(frozen=True)
class Snapshot:
    """The worker has copied its state to memory. The agent keeps it, and publishes it as a checkpoint on request.

    The descriptor of the memory is sent with it. The memory has room for the seal at its end, and ends there. The
    worker does not change the memory until it has got all answers, and has sent `DropSnapshot`.
    """

    slot: int
    """The number of the memory among those of the worker."""

    local_rank: int
    round: int
    step: int
    """The number of training steps in the state."""

    size: int
    """Bytes of the archive, which is the memory without its seal."""

    directory: str
    """The absolute path of the directory for the checkpoint."""

    file: str
    """The name of the checkpoint's file."""

    retention: Mapping[str, Any]
    """The rule for the checkpoints that stay there: the fields of `hpcelastic.training.retention.Retention`."""

    publish: bool = True
    """Whether the agent publishes it. The answer is `SnapshotDone`."""

    copy: bool = False
    """Whether another node shall have a copy. The answer, to every snapshot, is `SnapshotKept`."""


@dataclass(frozen=True)
class SnapshotDone:
    """The agent does not publish a snapshot any more."""

    slot: int
    error: str
    """The reason why it has not been published; empty if it has been."""


@dataclass(frozen=True)
class SnapshotKept:
    """The agent has sealed a snapshot, and another node has a copy if that is possible; or it does not keep it."""

    slot: int
    step: int
    error: str = ""
    """The reason why the agent does not keep the snapshot; empty if it does."""


@dataclass(frozen=True)
class DropSnapshot:
    """The worker is about to overwrite the memory of a snapshot."""

    slot: int


@dataclass(frozen=True)
class ListSnapshots:
    """The worker asks which snapshots of a directory the agent has in memory."""

    directory: str
    request: int
    """The number of the request among those of the worker. The answer has it too."""


@dataclass(frozen=True)
class SnapshotList:
    """The agent has these snapshots in memory."""

    node: str
    """The agent's node, with its incarnation."""

    files: Sequence[str]
    request: int


@dataclass(frozen=True)
class FetchSnapshot:
    """The worker asks for the memory of a snapshot that the agent of ``node`` has."""

    directory: str
    file: str
    node: str
    request: int


@dataclass(frozen=True)
class FetchedSnapshot:
    """The answer to `FetchSnapshot`. The descriptor of the memory is sent with it, unless there is an ``error``."""

    file: str
    error: str
    request: int


@dataclass(frozen=True)
class KeepOnly:
    """Training continues from the state of this checkpoint. The agent drops all other snapshots of the directory."""

    directory: str
    file: str
    """The name of the checkpoint's first file; empty to drop all."""


@dataclass(frozen=True)
class AwaitSnapshots:
    """The worker is about to look for checkpoints. It waits until the agent has published what it still has."""

    request: int


@dataclass(frozen=True)
class NoSnapshots:
    """The answer to `AwaitSnapshots`: the agent has no snapshot that is not published."""

    request: int


Message: TypeAlias = (
    Park
    | Resume
    | Entered
    | Parked
    | Interrupted
    | Snapshot
    | SnapshotDone
    | SnapshotKept
    | DropSnapshot
    | AwaitSnapshots
    | NoSnapshots
    | ListSnapshots
    | SnapshotList
    | FetchSnapshot
    | FetchedSnapshot
    | KeepOnly
)

_KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


class WorkerChannel:
    """One end of a channel."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def connect(cls, name: str) -> "WorkerChannel":
        """Connect to the agent that listens at ``name``. Raises OSError if no agent of this user does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(_address(name))
            if _peer(connection)[1] != os.geteuid():
                raise PermissionError(f"the agent's socket {name} belongs to another user")
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def fileno(self) -> int:
        """Readable when `receive` has a message to return, or the other end is closed."""
        return self._connection.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send a message and copies of ``fds``. Return False if the other end is closed, or does not read."""
        data = json.dumps([type(message).__name__, vars(message)]).encode()
        try:
            send_fds(self._connection, data, fds, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def receive(self, *, wait: bool) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors; None if the other end is closed or sends nonsense.

        Raises BlockingIOError if there is no message and ``wait`` is False.
        """
        try:
            data, fds = receive_fds(self._connection, _MAX_MESSAGE, _MAX_FDS, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise
        except OSError:
            return None
        try:
            kind, fields = json.loads(data)
            return _KINDS[kind](**fields), fds
        except (ValueError, TypeError, KeyError):  # an end is an empty message
            for fd in fds:
                os.close(fd)
            return None

    def close(self) -> None:
        self._connection.close()


class ChannelListener:
    """The agent's socket, to which workers connect."""

    def __init__(self) -> None:
        self.name = f"hpcelastic-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.bind(_address(self.name))
        self._socket.listen(_BACKLOG)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[int, WorkerChannel] | None:
        """Return the process id of a process that has connected, and its channel; None if no process has."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return None
            pid, user = _peer(connection)
            if user == os.geteuid():
                return pid, WorkerChannel(connection)
            connection.close()

    def close(self) -> None:
        self._socket.close()


def _address(name: str) -> str:
    return f"\0{name}"


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user
