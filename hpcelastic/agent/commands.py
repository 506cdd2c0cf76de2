"""The command lines of workers."""

import json
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from string import Template

from hpcelastic.agent.fork_server import shell_prefix
from hpcelastic.agent.settings import Entrypoint

FUNCTION_RUNNER = "hpcelastic.worker"
"""The module that calls the function of an entrypoint."""


def worker_arguments(entrypoint: Entrypoint, local_rank: int = 0) -> list[str]:
    """Return the command line of a worker; a program's is complete, any other follows ``python -u``."""
    args = [Template(str(arg)).safe_substitute(local_rank=local_rank) for arg in entrypoint.args]
    if entrypoint.program:
        return [entrypoint.program, *args]
    if entrypoint.script:
        return [entrypoint.script, *args]
    if entrypoint.module:
        return ["-m", entrypoint.module, *args]
    return ["-m", FUNCTION_RUNNER, str(entrypoint.function), json.dumps(entrypoint.args)]


def can_be_forked(entrypoint: Entrypoint) -> bool:
    """Return whether a forked process can run ``entrypoint``.

    It cannot run a program. It cannot run a directory, an archive or bytecode either: only a new interpreter can.
    """
    if entrypoint.program:
        return False
    return entrypoint.script is None or (entrypoint.script.endswith(".py") and Path(entrypoint.script).is_file())


def program_problem(program: str, directory: Path) -> str:
    """Return what is wrong with a program, or an empty text.

    A path is relative to ``directory``. A name without a slash is searched in PATH.
    """
    if "/" not in program:
        return "" if shutil.which(program) else "no such program in PATH; give its path"
    path = directory / program
    if not path.is_file():
        return f"there is no program {path}; check its path"
    return "" if os.access(path, os.X_OK) else f"{path} is not executable; chmod +x it"


def ignored_signals(forwarded: Collection[str]) -> list[str]:
    """Return the signals that workers ignore until the script installs a handler.

    SLURM may signal every process of a job, not only the agent, and a user signal without a handler kills a process.
    """
    return [name for name in ("SIGUSR1", "SIGUSR2") if name not in forwarded]


def command_line(entrypoint: Entrypoint, forwarded: Collection[str] = (), local_rank: int = 0) -> list[str]:
    """Return the complete command line of a worker that runs in a fresh interpreter or needs none."""
    python = [] if entrypoint.program else [sys.executable, "-u"]
    return [*shell_prefix(ignored_signals(forwarded)), *python, *worker_arguments(entrypoint, local_rank)]
