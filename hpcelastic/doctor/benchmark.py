"""The benchmark of nodes and of the connections between them, which several nodes make together.

Each node measures itself, and then its connection to one other node in each of a few rounds. A round pairs all nodes at
once, so the time does not grow with their number. Two rounds with other partners tell a slow node from a slow link.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hpcelastic.doctor.coordination import Coordination
from hpcelastic.errors import StoreError
from hpcelastic.ipc.readiness import readable
from hpcelastic.protocol.codec import decode, encode

ANSWER_TIMEOUT = 45.0
"""Seconds for the first answer of the process that measures, which includes its imports."""

_FILE_SIZE, _FILES = 16 << 20, 3
"""Bytes of a file that is written to measure the filesystem, and number of files. The best one counts."""


@dataclass(frozen=True)
class DeviceSpeed:
    """The speed of a GPU, or of the processors of a node."""

    device: str
    flops: float
    """Floating-point operations a second, in a matrix product."""

    memory: float
    """Bytes a second that a copy reads and writes."""


@dataclass(frozen=True)
class PairSpeed:
    """The speed of a connection, as one of its two nodes has measured it."""

    other: int
    """Rank of the other node."""

    latency: float = 0.0
    """Seconds of a collective of one number."""

    bandwidth: float = 0.0
    """Bytes a second in each direction, by TCP."""

    gather: float | None = None
    """Bytes a second between GPUs, by NCCL; None without GPUs."""

    error: str = ""


@dataclass(frozen=True)
class NodeSpeed:
    """All measurements of one node."""

    node: str
    devices: tuple[DeviceSpeed, ...] = ()
    filesystem: float = 0.0
    """Bytes a second to write a file of 16 MiB durably; the greatest of several measurements."""

    pairs: tuple[PairSpeed, ...] = ()
    error: str = ""
    """Why the node could not be measured; empty if it was."""


class Measurer(Protocol):
    """Measures this node; see `hpcelastic.worker.node_benchmark`."""

    def ask(self, command: dict[str, Any]) -> None:
        """Begin to execute a command."""

    def answer(self) -> Any:
        """Wait for the next answer. Raises StoreError if there is none in time, or if it is an error."""

    def close(self) -> None:
        """End."""


class MeasurerProcess:
    """A `Measurer` in a process of its own, because it imports torch and may hang."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, start_new_session=True)
        self._text = b""

    def ask(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise StoreError("the process that measures has ended") from None

    def answer(self) -> Any:
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + ANSWER_TIMEOUT
        while b"\n" not in self._text:
            if not readable([fd], max(0.0, deadline - time.monotonic())):
                raise StoreError(f"no answer within {ANSWER_TIMEOUT:g} s")
            data = os.read(fd, 65536)
            if not data:
                raise StoreError("the process that measures has ended")
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise StoreError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def schedule(count: int) -> list[list[int | None]]:
    """Return the partner of each rank in each round; None for a rank that has none in this round.

    Every rank has two different partners if there are more than two. Source: the circle method of round-robin
    tournaments.
    """
    if count < 2:
        return []
    places = count + count % 2
    rounds = 1 if count == 2 else 2 if count % 2 == 0 else 3
    found = []
    for number in range(rounds):
        circle = [0, *((place + number) % (places - 1) + 1 for place in range(places - 1))]
        partners: list[int | None] = [None] * count
        for one, other in zip(circle[: places // 2], reversed(circle[places // 2 :]), strict=True):
            if one < count and other < count:
                partners[one], partners[other] = other, one
        found.append(partners)
    return found


def measure_speeds(
    coordination: Coordination,
    node: str,
    address: str,
    directory: Path,
    measurer: Measurer,
    report: Callable[[str], None],
) -> list[NodeSpeed] | None:
    """Measure this node and its connections. Return the measurements of all nodes to member 0, and None to others.

    A node that cannot be measured is in the result, with the reason.
    """
    me, count = coordination.members.rank, coordination.members.count
    report("speed of each node")
    speed = _measure_node(node, directory, measurer)
    coordination.publish("measured", speed.error)
    pairs = []
    for number, partners in enumerate(schedule(count)):
        report(f"connections between pairs of nodes, round {number + 1} of {len(schedule(count))}")
        other = partners[me]
        if other is None:
            continue
        if error := speed.error or coordination.receive("measured", [other])[other]:
            pairs.append(PairSpeed(other, error=f"one of the two nodes could not be measured: {error}"))
        else:
            pairs.append(_measure_pair(coordination, address, measurer, number, other))
    if not speed.error:
        with contextlib.suppress(OSError):  # once more, because all nodes have measured the filesystem at once
            speed = replace(speed, filesystem=max(speed.filesystem, _measure_filesystem(directory)))
    coordination.publish("speed", encode(replace(speed, pairs=tuple(pairs))))
    if me != 0:
        return None
    received = coordination.receive("speed", range(count))
    try:
        speeds = [decode(NodeSpeed, received[rank]) for rank in range(count)]
    except ValueError as error:
        raise StoreError(
            f"a member runs another version of hpcelastic: {error}; install the same version on all nodes"
        ) from error
    if len({speed.node for speed in speeds}) < count:  # several members on one machine
        return [replace(speed, node=f"{speed.node}:{rank}") for rank, speed in enumerate(speeds)]
    return speeds


def _measure_node(node: str, directory: Path, measurer: Measurer) -> NodeSpeed:
    try:
        measurer.ask({"do": "compute"})
        devices = tuple(DeviceSpeed(**device) for device in measurer.answer())
        return NodeSpeed(node, devices, _measure_filesystem(directory))
    except (StoreError, OSError) as error:
        return NodeSpeed(node, error=str(error))


def _measure_filesystem(directory: Path) -> float:
    """Return the greatest speed in bytes a second with which a file is written durably. The filesystem is shared."""
    data = os.urandom(_FILE_SIZE)
    return max(_write_speed(directory, data) for _ in range(_FILES))


def _write_speed(directory: Path, data: bytes) -> float:
    path = directory / f".benchmark-{os.getpid()}-{time.monotonic_ns()}"
    start = time.monotonic()
    try:
        with open(path, "xb") as file:
            file.write(data)
            os.fsync(file.fileno())
        return len(data) / (time.monotonic() - start)
    finally:
        path.unlink(missing_ok=True)


def _measure_pair(coordination: Coordination, address: str, measurer: Measurer, number: int, other: int) -> PairSpeed:
    """Measure the connection to another member. The one with the lower rank serves the store of the two."""
    ready, step = f"ready-{number}", f"pair-{number}"
    try:
        coordination.publish(ready)
        coordination.receive(ready, [other])  # it may wait for its partner before, and a served store waits less long
        if coordination.members.rank < other:
            try:
                measurer.ask({"do": "serve", "address": address})
                port = measurer.answer()["port"]
            except (StoreError, KeyError):
                coordination.publish(step, None)  # so that the other member does not wait
                raise
            coordination.publish(step, {"address": address, "port": port})
        else:
            served = coordination.receive(step, [other])[other]
            if served is None:
                return PairSpeed(other, error="the other node could not serve")
            measurer.ask({"do": "connect", **served})
        return PairSpeed(other, **measurer.answer())
    except (StoreError, OSError, KeyError) as error:
        return PairSpeed(other, error=str(error))
