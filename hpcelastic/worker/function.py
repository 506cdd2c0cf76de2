"""The program of a worker whose entry point is a function: call it, and save its return value or its exception.

``python -m hpcelastic.worker MODULE:FUNCTION ARGS`` with ARGS a JSON list, or ``python -m hpcelastic.worker --pickled``
for a function that was submitted from Python, followed by the file's path if that is not the run's default.
"""

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.errors import HpcElasticError
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

PICKLED = "--pickled"


def load(arguments: list[str], paths: RunPaths) -> Callable[[], Any]:
    """Return the call that the command line names."""
    if arguments[0] == PICKLED:
        function, args = values.load_call(Path(arguments[1]) if arguments[1:] else paths.function)
        return lambda: function(*args)
    spec, args_json = arguments
    module, _, name = spec.partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda: function(*json.loads(args_json))


def format_error(error: Exception) -> str:
    """Format the exception with the user's own frames; an error of hpcelastic without frames."""
    if isinstance(error, HpcElasticError):
        return f"{error}\n"
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def record(error: Exception, path: Path) -> None:
    """Write the exception as torch's ``@record`` does; source: torch/distributed/elastic/multiprocessing/errors."""
    files.publish(path, files.to_json({"message": error_document(error)}))


def error_document(error: Exception) -> dict[str, Any]:
    """Return the exception in the format of torch's error files."""
    extra = {"py_callstack": format_error(error), "timestamp": str(time.time())}
    return {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}


def main() -> int:
    paths = RunPaths(Path(os.environ["HPCELASTIC_RUN_DIR"]))
    try:
        result = load(sys.argv[1:], paths)()
        _save_result(result, paths)
    except Exception as error:
        print(format_error(error), end="", file=sys.stderr)
        error_file = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        if not error_file.exists():  # if it exists, the function uses torch's @record, which has written it
            record(error, error_file)
        _save_exception(error, paths)
        return 1
    return 0


def _save_result(result: Any, paths: RunPaths) -> None:
    files.make_directory(paths.results, within=paths.root)
    values.save(paths.result(*_round_and_rank()), result)


def _save_exception(error: Exception, paths: RunPaths) -> None:
    """Save the exception itself for a reader of the result. Errors are ignored: its text is recorded already."""
    with contextlib.suppress(Exception):
        files.make_directory(paths.results, within=paths.root)
        values.save_pickle(paths.exception(*_round_and_rank()), error)


def _round_and_rank() -> tuple[int, int]:
    """Return the round and the rank of this worker."""
    return int(os.environ["HPCELASTIC_ROUND"]), int(os.environ["RANK"])
