"""The snapshots of this node's workers: the agent keeps them in memory, copies them to another node and publishes them.

A worker copies its state to memory that it shares with the agent, and goes on. The memory stays with the agent if the
worker dies.
"""

import os
import threading
from collections.abc import Callable
from functools import partial

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.kept_snapshots import Kept, KeptSnapshots
from hpcelastic.agent.session import Session
from hpcelastic.agent.snapshot_copies import CannotCopy, Dial, SnapshotCopies, reason_of
from hpcelastic.agent.snapshot_writer import Job, SnapshotWriter
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.worker_channel import (
    AwaitSnapshots,
    ChannelListener,
    DropSnapshot,
    FetchedSnapshot,
    FetchSnapshot,
    KeepOnly,
    ListSnapshots,
    Message,
    NoSnapshots,
    Snapshot,
    SnapshotDone,
    SnapshotKept,
    SnapshotList,
    WorkerChannel,
)
from hpcelastic.network import Transfer, TransferError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.events import Event
from hpcelastic.protocol.state import Member, Phase, State
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training.memory import has_fixed_size
from hpcelastic.training.retention import CheckpointName


class Snapshots:
    """Receives the messages of workers about snapshots.

    ``node`` is the id of this node. ``dial`` starts a transfer, and is None if agents do not use the network. ``log``
    is called with events, and ``report`` with lines for people, in any thread.
    """

    def __init__(
        self,
        paths: RunPaths,
        node: str,
        control_page: ControlPage,
        dial: Dial | None,
        loop: EventLoop,
        log: Callable[[Event], None],
        report: Callable[[str], None],
    ) -> None:
        self._node, self._control_page, self._loop = node, control_page, loop
        self.writer = SnapshotWriter(paths, log, report, self._saved)
        self.kept = KeptSnapshots()
        self._copies = SnapshotCopies(node, self.kept, dial, report)
        self._state: State | None = None
        """The newest state of the run that is known."""

        self._listener = ChannelListener()
        self._channels: set[WorkerChannel] = set()
        loop.watch(self._listener, self._accept)

    @property
    def name(self) -> str:
        """The name at which workers connect."""
        return self._listener.name

    def accept_transfer(self, transfer: Transfer) -> None:
        """Serve another agent, in a thread."""
        self._copies.accept(transfer)

    def observe(self, state: State) -> None:
        """Note the state of the run."""
        self._state = state
        self._copies.observe(state)

    def publish_if_lost(self, member: Member) -> None:
        """Publish the newest snapshots of a node that departs, unless the run has succeeded or continues without it.

        The others continue without a node that is drained. In other cases they may depart too.
        """
        state = self._state
        if state is not None and state.phase is not Phase.SUCCEEDED and not state.drains(member):
            self.publish_newest(state.round)

    def publish_newest(self, round: int) -> None:
        """Publish the snapshots in memory in the name of a round, because the memory of all nodes may be lost.

        The newest generation may be incomplete on another node, and the one before is complete. What is on disk
        already is left out. Copies come after the snapshots of this node, because their own nodes publish them too.
        """
        for kept in self.kept.newest():
            place = kept.snapshot.directory, kept.name
            self.writer.submit(Job(kept.snapshot, kept.name, kept.fd, round, place, final=True))

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Wait until all snapshots are published, or cannot be. ``interrupted`` tells whether to give up at once."""
        self.writer.finish(interrupted)
        self._loop.unwatch(self._listener)
        self._listener.close()
        for channel in self._channels:
            self._loop.unwatch(channel)
            channel.close()
        self._channels.clear()
        self.kept.close()

    # Messages of workers

    def _accept(self) -> None:
        while (accepted := self._listener.accept()) is not None:
            _, channel = accepted
            self._channels.add(channel)
            self._loop.watch(channel, partial(self._readable, channel))

    def _readable(self, channel: WorkerChannel) -> None:
        try:
            received = channel.receive(wait=False)
        except BlockingIOError:
            return
        if received is None:
            self._loop.unwatch(channel)
            self._channels.remove(channel)
            channel.close()
            return
        message, fds = received
        name = CheckpointName.parse(message.file) if isinstance(message, Snapshot) else None
        if isinstance(message, Snapshot) and name is not None and len(fds) == 1:
            self._received(channel, Kept(message, name, fds[0], (channel, message.slot)))
            return
        for fd in fds:
            os.close(fd)
        self._answer(channel, message)

    def _answer(self, channel: WorkerChannel, message: Message) -> None:
        if isinstance(message, AwaitSnapshots):
            self.writer.call_when_idle(lambda: channel.send(NoSnapshots(message.request)))
        elif isinstance(message, DropSnapshot):
            self.kept.drop((channel, message.slot))
        elif isinstance(message, ListSnapshots):
            files = [str(name) for name in self.kept.names(message.directory)]
            channel.send(SnapshotList(self._node, files, message.request))
        elif isinstance(message, FetchSnapshot):
            _in_thread(self._fetch, channel, message)
        elif isinstance(message, KeepOnly):
            self.kept.keep_only(message.directory, CheckpointName.parse(message.file))

    def _received(self, channel: WorkerChannel, kept: Kept) -> None:
        snapshot = kept.snapshot

        def ended(error: str) -> None:
            channel.send(SnapshotDone(snapshot.slot, error[:1000]))

        if not self._may_act(snapshot):
            self._refuse(channel, kept, reason := f"round {snapshot.round} has ended")
            if snapshot.publish:
                ended(reason)
            return
        if snapshot.publish:
            place, fd = (snapshot.directory, kept.name.part), os.dup(kept.fd)
            self.writer.submit(Job(snapshot, kept.name, fd, snapshot.round, place, ended))
        if has_fixed_size(kept.fd, kept.size):
            self.kept.add(kept)
            _in_thread(self._keep, channel, kept)
        else:
            self._refuse(channel, kept, "its size is not fixed, or another one")

    def _refuse(self, channel: WorkerChannel, kept: Kept, reason: str) -> None:
        kept.close()
        channel.send(SnapshotKept(kept.snapshot.slot, kept.snapshot.step, reason))

    def _may_act(self, snapshot: Snapshot) -> bool:
        seats = range(self._control_page.seats)
        return snapshot.local_rank in seats and self._control_page.is_granted(snapshot.local_rank, snapshot.round)

    # In other threads

    def _keep(self, channel: WorkerChannel, kept: Kept) -> None:
        """Seal a snapshot, and send a copy to another node."""
        snapshot = kept.snapshot
        sealed = self.kept.seal(kept)
        if sealed and snapshot.copy:
            self._copies.send(snapshot.directory, kept.name)
        channel.send(SnapshotKept(snapshot.slot, snapshot.step, "" if sealed else "it is dropped already"))

    def _fetch(self, channel: WorkerChannel, message: FetchSnapshot) -> None:
        name = CheckpointName.parse(message.file)
        try:
            if name is None:
                raise CannotCopy(f"{message.file} is no name of a checkpoint")
            fetched = self._copies.fetch(message.directory, name, message.node)
        except (CannotCopy, TransferError, OSError) as error:
            channel.send(FetchedSnapshot(message.file, reason_of(error), message.request))
            return
        with fetched:
            channel.send(FetchedSnapshot(message.file, "", message.request), [fetched.fd])

    def _saved(self, snapshot: Snapshot) -> None:
        """A snapshot is on disk. Called in the thread of the writer."""
        if snapshot.local_rank < self._control_page.seats:
            self._control_page.report(snapshot.local_rank, snapshot.step)


def _in_thread(function: Callable[..., None], *args: object) -> None:
    threading.Thread(target=function, args=args, name="snapshot", daemon=True).start()


def snapshots_of(
    session: Session,
    loop: EventLoop,
    control_page: ControlPage,
    settings: NetworkSettings,
    report: Callable[[str], None],
) -> Snapshots:
    """Return the snapshots of a session's node."""
    spec, network = session.spec, session.network
    dial = None if network is None else partial(network.dial, rate=settings.snapshot_rate << 20)
    snapshots = Snapshots(spec.paths, spec.member.node, control_page, dial, loop, session.log, report)
    session.accept_transfer = snapshots.accept_transfer
    return snapshots
