"""The jobs that were submitted for a run, in its directory."""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.storage import files, modes
from hpcelastic.storage.paths import RunPaths


def submitted(paths: RunPaths) -> list[dict[str, Any]]:
    """Return a record for each ``job``, the newest last. The record of an array has the number of its ``elements``.

    A last line without its end is still being written, and is left out. So is a line that was cut on a full disk.
    """
    lines = (files.read(paths.jobs) or b"").splitlines(keepends=True)
    return [record for line in lines if line.endswith(b"\n") and (record := _record(line))]


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; None if there is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("job"), str) else None


def add_record(paths: RunPaths, record: Mapping[str, Any]) -> None:
    """Add a record, durably, in a line of its own. Raises OSError."""
    fd = modes.create(paths.jobs, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        line = b"\n" * cut + files.to_json(record)
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths.jobs))
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class FinalStates:
    """SLURM's states of the jobs of a run whose agents have all disappeared."""

    last_sign: int
    """The time of the last sign of an agent, in microseconds since the epoch. The states are those after it."""

    jobs: Mapping[str, tuple[str, ...]]
    """The states of each job, or of the elements of an array."""


def final_states(paths: RunPaths) -> FinalStates | None:
    """Return the final states that an earlier command has recorded; None if there are none."""
    try:
        data = files.read_json(paths.job_ends)
        return None if data is None else decode(FinalStates, data)
    except DecodeError:
        return None


def record_final_states(paths: RunPaths, states: FinalStates) -> None:
    """Leave the final states of jobs in the directory: SLURM forgets them after minutes. Raises StoreError."""
    files.publish(paths.job_ends, files.to_json(encode(states)))
