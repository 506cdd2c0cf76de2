"""The error file of the launcher of an agent. With torchrun, ``@record`` writes it.

A launcher such as TorchX sets the path of the file in the environment, and reads the cause of a failure from it.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcelastic.errors import HpcElasticError, RunFailed, StoreError
from hpcelastic.protocol.state import Failure
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker.function import error_document

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_TIMEOUT = 5.0
"""Seconds for access to the filesystems."""


def record_cause(error: HpcElasticError, paths: RunPaths | None, environ: Mapping[str, str]) -> None:
    """Write the cause of the agent's failure to the error file, if the environment sets one.

    Source: torch/distributed/elastic/multiprocessing/errors. The report of the rank that failed first takes precedence
    over the agent's own error. A file that cannot be written is ignored, because the error was printed already.
    """
    path = environ.get(_ERROR_FILE)
    if not path:
        return
    with contextlib.suppress(OSError, StoreError):
        bounded(lambda: files.publish(Path(path), files.to_json(_cause(error, paths))), _TIMEOUT, path)


def _cause(error: HpcElasticError, paths: RunPaths | None) -> dict[str, Any]:
    first = error.failures[0] if isinstance(error, RunFailed) and error.failures else None
    if paths is None or not isinstance(first, Failure):
        return {"message": error_document(error)}
    with contextlib.suppress(OSError, ValueError):
        report = json.loads(files.read(paths.error_file(first.round, first.rank)) or b"null")
        if isinstance(report, dict) and isinstance(report.get("message"), dict):
            return {**report, "message": {**report["message"], "errorCode": first.exit_code}}
    extra_info = {"py_callstack": first.traceback, "timestamp": str(int(first.timestamp))}
    return {"message": {"message": first.message, "extraInfo": extra_info, "errorCode": first.exit_code}}
