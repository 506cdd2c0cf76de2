"""The shared filesystem of the model: operations wait for the metadata server, and are counted."""

import math
import os
from collections.abc import Callable
from typing import Any

from benchmarks.model.memory import objects_in_holes
from benchmarks.model.parameters import Model
from benchmarks.model.resources import Meter, Queue
from tests.simulation import filesystem
from tests.simulation.clock import Clock, Process

_METADATA = {"open", "create", "link", "symlink", "replace", "unlink", "mkdir", "stat", "list", "close"}
"""Kinds of operations that are requests to the metadata server."""

_UNAWAITED = {"close"}
"""Those of them that no client waits for."""

_LONG = 5000
"""Names of a listing whose objects must lie together in memory. To let them do so takes a quarter of a second."""


class Servers:
    """The servers of the filesystem, and what was requested of them."""

    def __init__(self, clock: Clock, model: Model) -> None:
        self.model = model
        self.metadata, self.data = Queue(clock), Queue(clock)
        self.requests = 0
        """Requests to the metadata server."""

        self.read = 0
        """Bytes."""

        self._filling: list[list[bytes]] = []

    def request(self, number: int) -> float:
        """Send ``number`` requests, one after the other. Return the seconds until the last one is executed."""
        storage = self.model.storage
        self.requests += number
        one = 1 / storage.operations
        before = storage.round_trip * (number - 1)
        return self.metadata.take(number * one, storage.round_trip / 2) + before

    def fill_holes(self) -> None:
        """Let the next objects lie together in memory; see `objects_in_holes`."""
        self._filling.clear()
        self._filling = objects_in_holes()


class Mount(filesystem.Mount):
    """The filesystem as one node sees it."""

    def __init__(
        self,
        server: filesystem.Server,
        servers: Servers,
        process: Process,
        name: str,
        node_clock: Callable[[], float],
        meter: Meter,
    ) -> None:
        super().__init__(server, process, name, node_clock)
        self._servers, self._meter = servers, meter
        self.requests = 0
        self.lock_poll = 0.01

    def _do(self, kind: str, apply: Callable[..., Any], *args: Any) -> Any:
        if self.clock.task is None:
            return apply(*args)
        model = self._servers.model
        pause = self._meter.take(model.processor.call)
        if pause:
            self._pause(pause)
        if kind == "read" and args and isinstance(args[0], str):  # of a whole file: open, read, close
            self._request("open")
            self._request("close")
        elif kind in _METADATA:
            self._request(kind)
        result = apply(*args)
        self._meter.resume()
        if kind == "list":
            self._pause(self._meter.take(len(result) * model.processor.entry))
            self._request("list", self._pages(result))
            if len(result) > _LONG:
                self._servers.fill_holes()
                self._meter.resume()
        elif kind == "read":
            self._servers.read += len(result)
            self._pause(self._servers.data.take(len(result) / model.storage.bandwidth) + model.storage.round_trip)
        elif kind == "fsync":
            self._pause(model.storage.sync + model.storage.round_trip)
        return result

    def _request(self, kind: str, number: int = 1) -> None:
        if not number:
            return
        self.requests += number
        seconds = self._servers.request(number)
        if kind not in _UNAWAITED:
            self._pause(seconds + self._servers.model.storage.round_trip / 2)

    def _pages(self, names: list[str]) -> int:
        storage = self._servers.model.storage
        size = sum(map(len, names)) + storage.entry * len(names)
        return math.ceil(size / storage.entries)


def counted_utime(mount: Callable[[], filesystem.Mount]) -> Callable[..., None]:
    """Return a replacement of os.utime, which the simulation leaves out."""
    return lambda path, ns: mount().utime(os.fspath(path), ns)
