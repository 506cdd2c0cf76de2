"""What a worker runs when the entry point is a function: call it, keep its return value or its exception.

``python -m hpcelastic.worker MODULE:FUNCTION ARGS`` with ARGS a JSON list, or ``python -m hpcelastic.worker --pickled``
for a function that was submitted from Python, with a file's path if it is not where the run keeps it.
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
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

PICKLED = "--pickled"


def load(arguments: list[str], paths: RunPaths) -> Callable[[], Any]:
    """The call that the command line asks for."""
    if arguments[0] == PICKLED:
        function, args = values.load_call(Path(arguments[1]) if arguments[1:] else paths.function)
        return lambda: function(*args)
    spec, args_json = arguments
    module, _, name = spec.partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda: function(*json.loads(args_json))


def told(error: Exception) -> str:
    """The exception for a person: the user's own frames, and none for what is a message already."""
    if isinstance(error, HpcElasticError):
        return f"{error}\n"
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def record(error: Exception, path: Path) -> None:
    """Write the exception as torch's ``@record`` does; source: torch/distributed/elastic/multiprocessing/errors."""
    files.publish(path, files.to_json({"message": described(error)}))


def described(error: Exception) -> dict[str, Any]:
    """The exception as it stands in an error file of torch's."""
    extra = {"py_callstack": told(error), "timestamp": str(time.time())}
    return {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}


def main() -> int:
    paths = RunPaths(Path(os.environ["HPCELASTIC_RUN_DIR"]))
    try:
        result = load(sys.argv[1:], paths)()
        _keep(result, paths)
    except Exception as error:
        print(told(error), end="", file=sys.stderr)
        error_file = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        if not error_file.exists():  # torch's @record, which the function may have, has written it
            record(error, error_file)
        _keep_exception(error, paths)
        return 1
    return 0


def _keep(result: Any, paths: RunPaths) -> None:
    files.make_directory(paths.results)
    values.save(paths.result(*_place()), result)


def _keep_exception(error: Exception, paths: RunPaths) -> None:
    """Keep the exception itself for who asks for the result; its text is recorded already, so this may fail."""
    with contextlib.suppress(Exception):
        files.make_directory(paths.results)
        values.save_pickle(paths.exception(*_place()), error)


def _place() -> tuple[int, int]:
    """Round and rank of this worker."""
    return int(os.environ["HPCELASTIC_ROUND"]), int(os.environ["RANK"])
