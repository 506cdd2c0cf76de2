"""The jobs that were submitted for a run, in its directory."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hpcelastic.protocol.codec import DecodeError, decode
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths


def submitted(paths: RunPaths) -> list[dict[str, Any]]:
    """Return a record for each ``job``, the newest last. The record of an array has the number of its ``elements``.

    A last line without its end is still being written, and is left out.
    """
    lines = (files.read(paths.jobs) or b"").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def final_states(paths: RunPaths) -> dict[str, tuple[str, ...]]:
    """Return the final states of jobs that an earlier command has recorded."""
    try:
        return decode(dict[str, tuple[str, ...]], files.read_json(paths.job_ends) or {})
    except DecodeError:
        return {}


def record_final_states(paths: RunPaths, states: Mapping[str, Sequence[str]]) -> None:
    """Leave the final states of jobs in the directory: SLURM forgets them after minutes. Raises StoreError."""
    files.publish(paths.job_ends, files.to_json({job: list(ended) for job, ended in states.items()}))
