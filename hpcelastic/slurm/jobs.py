"""The jobs that were submitted for a run, read from its directory."""

import json
from typing import Any

from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths


def submitted(paths: RunPaths) -> list[dict[str, Any]]:
    """Return a record for each ``job``, the newest last. The record of an array has the number of its ``elements``.

    A last line without its end is still being written, and is left out.
    """
    lines = (files.read(paths.jobs) or b"").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
