"""The jobs that were submitted for a run, in its directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths


def submitted(paths: RunPaths) -> list[dict[str, Any]]:
    """Return a record for each ``job``, the newest last. The record of an array has the number of its ``elements``.

    A last line without its end is still being written, and is left out.
    """
    lines = (files.read(paths.jobs) or b"").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


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
