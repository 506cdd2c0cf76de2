"""The native stacks of workers: the functions of C, C++ and CUDA libraries in which they are.

They are taken by py-spy, where it is installed and may trace the processes (ptrace). It stops a process meanwhile, for
up to half a second.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable

PROGRAM = "py-spy"

TIMEOUT = 3.0
"""Seconds for all processes together. The end of a round waits for them."""


def native_stacks(pids: Iterable[int]) -> dict[int, str]:
    """Return the stacks of each process, or why there are none; nothing if py-spy is not installed."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    program = shutil.which(PROGRAM, path=path)
    if program is None:
        return {}
    deadline = time.monotonic() + TIMEOUT
    started = {pid: _start(program, pid) for pid in pids}
    return {pid: _result(process, deadline) for pid, process in started.items()}


def _start(program: str, pid: int) -> "subprocess.Popen[str]":
    command = [program, "dump", "--native", "--pid", str(pid)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace")


def _result(process: "subprocess.Popen[str]", deadline: float) -> str:
    with process:
        try:
            output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return f"no native stacks: {PROGRAM} took longer than {TIMEOUT:g} s\n"
    if process.returncode:
        reason = next(filter(None, errors.splitlines()), f"exit status {process.returncode}")
        return f"no native stacks: {PROGRAM}: {reason}\n"
    return output
