"""Copies of snapshots on other nodes: agents send them to each other, on connections of their own.

Each node of a round has a *buddy*, which keeps a copy of each of its snapshots. After the loss of a node, the agents
that are left fetch what their workers need. All of this happens in threads, beside the agent's main thread.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from hpcelastic.agent.kept_snapshots import Kept, KeptSnapshots
from hpcelastic.agent.notifier import peer_of
from hpcelastic.ipc.worker_channel import Snapshot
from hpcelastic.network import Peer, Transfer, TransferError
from hpcelastic.protocol.peers import buddy
from hpcelastic.protocol.rows import column
from hpcelastic.protocol.state import Phase, State, name_of
from hpcelastic.training.memory import allocate_shared
from hpcelastic.training.retention import CheckpointName, Retention
from hpcelastic.training.seals import SEAL_LENGTH

_LEAST_RATE = 2**28
"""Bytes for each second that another agent may take to allocate memory, or to check its content."""

_MAX_SERVED = 32
"""Requests of other agents that are served at the same time. Beyond this they are refused."""

_FIELDS = [field.name for field in fields(Snapshot)]

Dial = Callable[[Peer], Transfer]


class CannotCopy(Exception):
    """A snapshot could not be sent to another node, or be fetched from it."""


class SnapshotCopies:
    """The exchange of snapshots between the agent of ``node`` and those of other nodes.

    ``dial`` starts a transfer, and is None if agents do not use the network. ``report`` is called with lines for
    people, in any thread.
    """

    def __init__(self, node: str, kept: KeptSnapshots, dial: Dial | None, report: Callable[[str], None]) -> None:
        self._node, self._kept, self._start_transfer, self._report = node, kept, dial, report
        self._state: State | None = None
        """The state in which the newest round began."""

        self._buddy: Peer | None = None
        self._reported = False
        self._fetches = threading.Lock()
        self._served = threading.BoundedSemaphore(_MAX_SERVED)

    def observe(self, state: State) -> None:
        """Note the members of the running round. Called in the main thread."""
        before = self._state
        if state.phase is not Phase.RUNNING or (before is not None and state.round == before.round):
            return
        index = state.ranks.get(self._node)
        chosen = None if index is None else buddy(index, column(state.participants, "topology"))
        self._state, self._reported = state, False
        self._buddy = None if chosen is None else peer_of(state.participants[chosen])

    def send(self, directory: str, name: CheckpointName) -> str:
        """Send a sealed snapshot to the buddy. Return the buddy's node, or an empty text if there is no copy.

        The reason is reported once in each round.
        """
        there = self._buddy
        kept = None if there is None else self._kept.open(directory, name)
        if there is None or kept is None:
            return ""
        with kept:
            try:
                self._send(kept, there)
            except (CannotCopy, TransferError, OSError) as error:
                if not self._reported:
                    self._reported = True
                    where, reason = name_of(there.node), reason_of(error)
                    self._report(f"snapshots are in the memory of this node only; {where} has no copy: {reason}")
                return ""
        return there.node

    def _send(self, kept: Kept, there: Peer) -> None:
        with self._dial(there) as transfer:
            busy = kept.size / _LEAST_RATE
            transfer.send({"keep": vars(kept.snapshot)})
            _check(transfer.receive(busy))  # it has memory for it
            with kept.view() as memory:
                transfer.send({}, memory)
            _check(transfer.receive(busy))  # it has checked the content

    def fetch(self, directory: str, name: CheckpointName, node: str) -> Kept:
        """Return a snapshot that the agent of ``node`` has, for the caller to close. A copy stays here.

        Raises `CannotCopy`, ``TransferError`` or ``OSError`` if that is not possible.
        """
        with self._fetches:  # workers of this node may ask for the same
            here, there = self._kept.open(directory, name), self._peer(node)
            if here is not None:
                return here
            if there is None or node == self._node:
                raise CannotCopy("it is not there any more")
            with self._dial(there) as transfer:
                transfer.send({"fetch": str(name), "directory": directory})
                answer = transfer.receive()
                _check(answer)
                snapshot, sent = _parse(answer.get("snapshot"))
                if (snapshot.directory, sent) != (directory, name):
                    raise CannotCopy(f"{sent} of {snapshot.directory} was sent in its place")
                copy = _receive(transfer, snapshot, name)
            mine = copy.duplicate()
            self._kept.add(copy, sealed=True)
            return mine

    def _peer(self, node: str) -> Peer | None:
        """Return the agent of a member of the round; None if the node is no member."""
        rank = None if self._state is None else self._state.ranks.get(node)
        return None if self._state is None or rank is None else peer_of(self._state.participants[rank])

    def _dial(self, there: Peer) -> Transfer:
        if self._start_transfer is None:
            raise CannotCopy("agents do not use the network; see network.notifications")
        return self._start_transfer(there)

    # Requests of other agents

    def accept(self, transfer: Transfer) -> None:
        """Serve another agent, in a thread."""
        if self._served.acquire(blocking=False):
            threading.Thread(target=self._serve, args=(transfer,), name="snapshot request", daemon=True).start()
        else:
            transfer.close()

    def _serve(self, transfer: Transfer) -> None:
        try:
            with transfer:
                try:
                    self._answer(transfer, transfer.receive())
                except (CannotCopy, OSError) as error:
                    transfer.send({"error": reason_of(error)})
        except TransferError:
            return  # the other end reports it
        finally:
            self._served.release()

    def _answer(self, transfer: Transfer, request: Mapping[str, Any]) -> None:
        if "keep" in request:
            if not self._kept.add(_receive(transfer, *_parse(request["keep"])), sealed=True):
                raise CannotCopy("there are newer snapshots")
            transfer.send({})
            return
        name, directory = _parse_name(request.get("fetch")), request.get("directory")
        kept = self._kept.open(directory, name) if isinstance(directory, str) else None
        if kept is None:
            raise CannotCopy("it is not there any more")
        with kept, kept.view() as memory:
            transfer.send({"snapshot": vars(kept.snapshot)})
            _check(transfer.receive(kept.size / _LEAST_RATE))
            transfer.send({}, memory)


def reason_of(error: Exception) -> str:
    """Return the text of an error for people and for another agent."""
    return str((isinstance(error, OSError) and error.strerror) or error)[:1000]


def _parse(sent: object) -> tuple[Snapshot, CheckpointName]:
    """Return the snapshot that another agent describes, and its name. Unknown fields are ignored.

    Raises `CannotCopy` if it is none.
    """
    if not isinstance(sent, Mapping):
        raise CannotCopy("the other agent describes no snapshot")
    name = _parse_name(sent.get("file"))
    try:
        snapshot = Snapshot(**{field: sent[field] for field in _FIELDS if field in sent})
        Retention(**snapshot.retention)
    except (TypeError, ValueError) as error:
        raise CannotCopy(f"the other agent describes no snapshot: {error}") from error
    has_types = isinstance(snapshot.directory, str) and isinstance(snapshot.size, int)
    if not has_types or snapshot.size < 0 or (snapshot.round, snapshot.step) != name[:2]:
        raise CannotCopy(f"the other agent describes no snapshot that fits {name}")
    return snapshot, name


def _parse_name(sent: object) -> CheckpointName:
    try:
        name = CheckpointName.parse(sent) if isinstance(sent, str) else None
    except ValueError:  # Python refuses to convert numbers of more than 4,300 digits
        name = None
    if name is None:
        raise CannotCopy(f"{str(sent)[:100]} is no name of a checkpoint")
    return name


def _receive(transfer: Transfer, snapshot: Snapshot, name: CheckpointName) -> Kept:
    """Receive the memory of a snapshot, and check it."""
    copy = Kept(snapshot, name, allocate_shared(snapshot.size + SEAL_LENGTH))
    try:
        transfer.send({})
        transfer.receive()
        with copy.view() as memory:
            transfer.receive_into(memory)
        if not copy.is_whole():
            raise CannotCopy("it is damaged")
    except BaseException:
        copy.close()
        raise
    return copy


def _check(answer: Mapping[str, Any]) -> None:
    """Raise the error in an answer."""
    if answer.get("error"):
        raise CannotCopy(str(answer["error"]))
