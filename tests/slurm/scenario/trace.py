"""The trace of a scenario's workers, one JSON line for each note. It is the evidence for the judge.

All nodes of a test cluster share this machine's clocks, so times of different nodes can be compared.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """One action of one worker."""

    kind: str
    """``started``, the first note; ``step``, a step is done; ``saved``, a checkpoint; ``snapshot``, it is about
    to be taken; ``result``, it is published; ``stopped`` on request; ``waiting``, with all others, for the permission
    to do the last steps."""

    round: int
    rank: int
    world_size: int
    step: int
    """For ``step`` and ``waiting``, the step, counted from 0; otherwise the number of steps in the state; -1 at the
    start."""

    node: str
    pid: int
    monotonic: float
    """Seconds, CLOCK_MONOTONIC."""

    wall: float
    """Seconds since the epoch."""

    @property
    def progress(self) -> bool:
        """True if only a complete worker group can have done this."""
        return self.kind in ("step", "waiting")


class Trace:
    """The notes of this process. Each is written at once, so that it stays if the process is killed."""

    def __init__(self, directory: Path, worker: tuple[int, int, int], node: str) -> None:
        directory.mkdir(exist_ok=True)
        self._worker, self._node = worker, node
        name = f"round-{worker[0]:04}.rank-{worker[1]:05}.{node.replace('@', '-')}.{os.getpid()}.jsonl"
        self._file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, step: int = -1) -> None:
        note = Note(kind, *self._worker, step, self._node, os.getpid(), time.monotonic(), time.time())
        os.write(self._file, json.dumps(asdict(note)).encode() + b"\n")


def read_trace(directory: Path, newest: bool = False) -> list[Note]:
    """Return all notes, or those of the newest round, ordered by time."""
    paths = list(directory.glob("*.jsonl"))
    if newest:
        last = max((path.name.partition(".")[0] for path in paths), default="")
        paths = [path for path in paths if path.name.startswith(f"{last}.")]
    lines = (line for path in paths for line in path.read_text().splitlines())
    return in_order(note for line in lines if (note := _parse(line)))


def in_order(notes: Iterable[Note]) -> list[Note]:
    return sorted(notes, key=lambda note: note.monotonic)


def _parse(line: str) -> Note | None:
    """Return None for a line that was cut off when the process was killed."""
    try:
        return Note(**json.loads(line))
    except ValueError:
        return None
