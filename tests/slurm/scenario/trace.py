"""The notes of a scenario's workers, one JSON line each. They are the evidence for the judge.

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
    """One thing that one worker did."""

    kind: str
    """``started``, before all else; ``step``, done; ``saved``, a checkpoint; ``result``, published; ``stopped``,
    because the run was asked to; ``waiting``, with all others, for leave to do the last steps."""

    round: int
    rank: int
    world_size: int
    step: int
    """The step done, counted from 0, or waited for; else, how many steps the state holds; -1 of the start."""

    node: str
    pid: int
    monotonic: float
    """Seconds, CLOCK_MONOTONIC."""

    wall: float
    """Seconds since the epoch."""

    @property
    def progress(self) -> bool:
        """True of what only a group can do that is whole."""
        return self.kind in ("step", "waiting")


class Trace:
    """The notes of this process; each is in the file as soon as it is made, whatever is killed afterwards."""

    def __init__(self, directory: Path, worker: tuple[int, int, int], node: str) -> None:
        directory.mkdir(exist_ok=True)
        self._worker, self._node = worker, node
        name = f"round-{worker[0]:04}.rank-{worker[1]:05}.{node.replace('@', '-')}.{os.getpid()}.jsonl"
        self._file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, step: int = -1) -> None:
        note = Note(kind, *self._worker, step, self._node, os.getpid(), time.monotonic(), time.time())
        os.write(self._file, json.dumps(asdict(note)).encode() + b"\n")


def read_trace(directory: Path, newest: bool = False) -> list[Note]:
    """All notes, or those of the newest round, by time."""
    paths = list(directory.glob("*.jsonl"))
    if newest:
        last = max((path.name.partition(".")[0] for path in paths), default="")
        paths = [path for path in paths if path.name.startswith(f"{last}.")]
    lines = (line for path in paths for line in path.read_text().splitlines())
    return in_order(note for line in lines if (note := _parse(line)))


def in_order(notes: Iterable[Note]) -> list[Note]:
    return sorted(notes, key=lambda note: note.monotonic)


def _parse(line: str) -> Note | None:
    """None for a line that a death has cut off."""
    try:
        return Note(**json.loads(line))
    except ValueError:
        return None
