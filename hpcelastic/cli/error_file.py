"""The error file of the process that has started an agent, which torchrun's ``@record`` writes for it.

A launcher such as TorchX names the file in the environment, and reads from it why torchrun has failed.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcelastic.errors import HpcElasticError, RunFailed, StoreError
from hpcelastic.protocol.state import Failure
from hpcelastic.store import files
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths
from hpcelastic.worker.function import described

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_PATIENCE = 5.0
"""Seconds that the filesystems may take."""


def record_cause(error: HpcElasticError, paths: RunPaths | None, environ: Mapping[str, str]) -> None:
    """Write why the agent has failed to the file that the environment names, if it names one.

    Source: torch/distributed/elastic/multiprocessing/errors. The report of the rank that failed first goes before the
    agent's own error. A file that can't be written is left out: the error was printed.
    """
    path = environ.get(_ERROR_FILE)
    if not path:
        return
    with contextlib.suppress(OSError, StoreError):
        bounded(lambda: files.publish(Path(path), files.to_json(_cause(error, paths))), _PATIENCE, path)


def _cause(error: HpcElasticError, paths: RunPaths | None) -> dict[str, Any]:
    first = error.failures[0] if isinstance(error, RunFailed) and error.failures else None
    if paths is None or not isinstance(first, Failure):
        return {"message": described(error)}
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(files.read(paths.error_file(first.round, first.rank)) or b"null")
        if isinstance(told, dict) and isinstance(told.get("message"), dict):
            return {**told, "message": {**told["message"], "errorCode": first.exit_code}}
    extra = {"py_callstack": first.traceback, "timestamp": str(int(first.timestamp))}
    return {"message": {"message": first.message, "extraInfo": extra, "errorCode": first.exit_code}}
