"""Kinds of faults in real runs of three nodes: how each is injected, and what the run must find and do.

The judge of a fault knows nothing but the run's directory. Hangs, stragglers, poisoned states, a lack of memory, cuts
and faults of the directory have scripts and suites of their own.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.processes import descendants, send
from tests.e2e.rounds import Run

NODES, CULPRIT, STEP = 3, 2, 20
"""Number of nodes with one worker each, the rank at fault, and the step in which it is at fault."""

SCRIPT = """
import ctypes, os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from hpcelastic.training import context, resumable, should_stop

torch.set_num_threads(1)
CULPRIT, STEP, FAULT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

@record
def main():
    dist.init_process_group("gloo")
    number, here = 0, context()
    while not should_stop():
        if (number, here.rank, here.round) == (STEP, CULPRIT, 1):
            exec(FAULT, {**globals()})
        finished = torch.tensor([float(Path("finish").exists())])
        dist.all_reduce(finished)
        if finished.item():
            break
        time.sleep(0.02)
        number += 1
        if number == STEP:
            Path(f"notes/{here.round}.{here.rank}.up").write_text(str(os.getpid()))
        if number == STEP + 50:
            Path(f"notes/{here.round}.{here.rank}.on").touch()
    dist.destroy_process_group()

resumable(main)()
"""


@dataclass(frozen=True)
class WorkerFault:
    """A fault that the rank at fault causes itself, by ``code``. Its process ends, and nothing else is at fault."""

    code: str
    exit_code: int
    message: str
    """The message of the failure of the rank."""


def _raises(code: str, message: str) -> WorkerFault:
    return WorkerFault(code, 1, message)


def _signals(code: str, signum: signal.Signals) -> WorkerFault:
    return WorkerFault(code, -signum, f"killed by {signum.name}")


WORKER_FAULTS = {
    "an exception": _raises('raise ValueError("bad batch 17")', "ValueError: bad batch 17"),
    "an assertion": _raises('assert [] == [1], "labels differ"', "AssertionError: labels differ"),
    "a missing module": _raises("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "a missing file": _raises('open("/nowhere/data.bin")', "FileNotFoundError: [Errno 2] No such file or directory"),
    "a full disk": _raises('open("/dev/full", "wb", buffering=0).write(b"x")', "OSError: [Errno 28] No space left"),
    "too many open files": _raises(
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = []\n"
        "try:\n while True: kept.append(open('/dev/null'))\nexcept OSError:\n kept.clear()\n raise",
        "OSError: [Errno 24] Too many open files",
    ),
    "no memory left in Python": _raises("bytearray(1 << 60)", "MemoryError"),
    "an endless recursion": _raises("def call(): call()\ncall()", "RecursionError: maximum recursion depth exceeded"),
    "another shape": _raises("torch.ones(2, 3) @ torch.ones(2, 3)", "RuntimeError: mat1 and mat2 shapes cannot be"),
    "a label out of range": _raises(
        "torch.nn.functional.cross_entropy(torch.randn(2, 3), torch.tensor([0, 7]))", "IndexError: Target 7 is out of"
    ),
    "a process of a pool that died": _raises(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import multiprocessing\n"
        "ProcessPoolExecutor(1, multiprocessing.get_context('fork')).submit(os.abort).result()",
        "BrokenProcessPool: A process in the process pool was terminated",
    ),
    "a message of a broken GPU": _raises(
        'raise RuntimeError("CUDA error: uncorrectable ECC error encountered")', "RuntimeError: CUDA error: uncorrec"
    ),
    "an exit status": WorkerFault("os._exit(7)", 7, "exit status 7"),
    "an exit of the interpreter": WorkerFault("sys.exit(3)", 3, "exit status 3"),
    "a segmentation fault": _signals("ctypes.string_at(0)", signal.SIGSEGV),
    "an abort": _signals("os.abort()", signal.SIGABRT),
    "SIGKILL": _signals("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
    "a bus error": _signals("os.kill(os.getpid(), signal.SIGBUS)", signal.SIGBUS),
    "an illegal instruction": _signals("os.kill(os.getpid(), signal.SIGILL)", signal.SIGILL),
    "an interrupt": _signals("raise KeyboardInterrupt", signal.SIGINT),
}


@dataclass(frozen=True)
class NodeFault:
    """A fault of the node of rank 2, from outside. The other nodes continue without it unless ``returns``."""

    inject: Callable[[Run], None]
    reason: str
    """A part of the reason for which the round ends; empty if it continues."""

    returns: bool = False


def _agent(run: Run) -> int:
    return int(run.agents[CULPRIT].pid)


def _node(run: Run) -> list[int]:
    """Return all processes of the node, the agent first."""
    return [_agent(run), *descendants(_agent(run))]


def _send(signum: signal.Signals) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        send(_node(run), signum)  # some of these processes live for an instant

    return inject


def _of(words: bytes) -> Callable[[Run], None]:
    """Return a fault that kills the process of the node with ``words`` in its command line."""

    def inject(run: Run) -> None:
        for pid in _node(run)[1:]:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if words in file.read():
                    os.kill(pid, signal.SIGKILL)
                    return
        raise AssertionError(f"no process with {words!r}")

    return inject


NODE_FAULTS = {
    "its agent is killed": NodeFault(lambda run: os.kill(_agent(run), signal.SIGKILL), "n2 was lost"),
    "all its processes are killed": NodeFault(_send(signal.SIGKILL), "n2 was lost"),
    "its agent is stopped": NodeFault(lambda run: os.kill(_agent(run), signal.SIGSTOP), "n2 was lost"),
    "all its processes are stopped": NodeFault(_send(signal.SIGSTOP), "n2 was lost"),
    "its agent is asked to end": NodeFault(lambda run: os.kill(_agent(run), signal.SIGTERM), "n2 leaves"),
    "its worker is killed": NodeFault(
        lambda run: os.kill(run.pids(1)[CULPRIT], signal.SIGKILL),
        "rank 2 failed on n2: killed by SIGKILL",
        returns=True,
    ),
    "its worker is asked to end": NodeFault(lambda run: os.kill(run.pids(1)[CULPRIT], signal.SIGTERM), ""),
    "its guard is killed": NodeFault(_of(b"guard_main.py"), ""),
    "its fork server is killed": NodeFault(_of(b"fork_server_main.py"), ""),
}
