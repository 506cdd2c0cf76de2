"""The jobs that were submitted for a run, as its directory has them."""

import json
from typing import Any

from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths


def submitted(paths: RunPaths) -> list[dict[str, Any]]:
    """A record for each ``job``, the newest last; of an array, with the number of its ``elements``."""
    return [json.loads(line) for line in (files.read(paths.jobs) or b"").splitlines()]
