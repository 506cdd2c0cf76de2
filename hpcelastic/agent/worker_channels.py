"""The channels of this node's workers whose processes can stay for the next round."""

import os
from collections.abc import Callable

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.ipc.worker_channel import ChannelListener, Message, WorkerChannel


class WorkerChannels:
    """Accepts the connections of workers, and passes their messages on."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop, self._listener = loop, ChannelListener()
        self._channels: dict[int, WorkerChannel] = {}
        self._is_worker: Callable[[int], bool] = lambda pid: False
        self._received: Callable[[int, Message], None] = lambda pid, message: None

    @property
    def name(self) -> str:
        """The name at which workers connect."""
        return self._listener.name

    def serve(self, is_worker: Callable[[int], bool], received: Callable[[int, Message], None]) -> None:
        """Accept connections from now on, of processes for which ``is_worker`` is true.

        ``received`` is called with the process id of a worker and each of its messages.
        """
        self._is_worker, self._received = is_worker, received
        self._loop.watch(self._listener, self.accept)

    def accept(self) -> None:
        """Accept all connections that wait."""
        while (accepted := self._listener.accept()) is not None:
            pid, channel = accepted
            if self._is_worker(pid) and pid not in self._channels:
                self._channels[pid] = channel
                self._loop.watch(channel, lambda pid=pid: self._readable(pid))  # type: ignore[misc]
            else:
                channel.close()

    def get(self, pid: int) -> WorkerChannel | None:
        """Return the channel of a worker; None if the worker cannot be parked."""
        return self._channels.get(pid)

    def read(self, pid: int) -> Message | None:
        """Return the next message of a worker; None if there is none, or the worker has closed its channel."""
        channel = self._channels.get(pid)
        if channel is None:
            return None
        try:
            received = channel.receive(wait=False)
        except BlockingIOError:
            return None
        if received is None:
            self.drop(pid)
            return None
        message, fds = received
        for fd in fds:
            os.close(fd)
        return message

    def drop(self, pid: int) -> None:
        """Close the channel of a worker, if it has one."""
        channel = self._channels.pop(pid, None)
        if channel is not None:
            self._loop.unwatch(channel)
            channel.close()

    def close(self) -> None:
        """Close all channels. No worker can connect any more."""
        self._loop.unwatch(self._listener)
        self._listener.close()
        for pid in list(self._channels):
            self.drop(pid)

    def _readable(self, pid: int) -> None:
        message = self.read(pid)
        if message is not None:
            self._received(pid, message)
