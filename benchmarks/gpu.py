"""The time for which a fault stops training on GPUs, compared with torchrun.

Twice: from the SIGKILL of a worker to the first CUDA step of all workers, on one node with a worker for each GPU, at
most eight, and NCCL; and the measurement of `resume`, with three nodes that share the first GPU. Without a GPU, nothing
is measured, and the table says so.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import resume
from benchmarks.notes import new_world
from benchmarks.processes import send
from benchmarks.report import Table, ratio, spread
from benchmarks.sides import Workload, sides

SCRIPT = Path(__file__).with_name("steps.py")
_MOST = 8
_SETTLE = 2.0
_KEEPING = ("hpcelastic, Elastic", "torchrun")
"""The sides of `resume` that are compared on a GPU."""


@dataclass(frozen=True)
class Parameters:
    repeat: int = 3
    timeout: float = 120.0
    sides: tuple[str, ...] = ("hpcelastic", "torchrun")
    backend: str = "nccl"
    """``gloo`` needs no GPU and is for tests."""


QUICK = Parameters(repeat=1)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a start and a crash of each launcher in turn, ``repeat`` times."""
    workers = _gpus() if parameters.backend == "nccl" else 1
    if not workers:
        say("no GPU on this machine: torch.cuda.is_available() is false")
    runs = []
    for _ in range(parameters.repeat if workers else 0):
        for name, make in sides(parameters.sides)[0].items():
            run = {"side": name, **_crash(make, workers, parameters)}
            say(f"{name}: start {spread([run['start']])} s, crash {spread([run['crash']])} s")
            runs.append(run)
    resumed = None
    if workers and parameters.backend == "nccl":
        together = resume.Parameters(parameters.repeat, builds=(0.0,), sides=_KEEPING, examples=(), device="cuda")
        resumed = resume.measure(together, say)
    return {"parameters": asdict(parameters), "workers": workers, "runs": runs, "resumed": resumed}


def _gpus() -> int:
    import torch

    return min(torch.cuda.device_count(), _MOST) if torch.cuda.is_available() else 0


def _crash(make: type, workers: int, parameters: Parameters) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        workload = Workload(Path(directory), SCRIPT, "1..1", workers, (parameters.backend,))
        side = make(workload)
        try:
            began = time.monotonic()
            side.start_all(1)
            steps = new_world(workload.notes, workers, began, parameters.timeout)
            if steps is None:
                return {"start": None, "crash": None}
            started = max(step.time for step in steps) - began
            time.sleep(_SETTLE)
            since = time.monotonic()
            send([max(steps, key=lambda step: step.rank).pid], signal.SIGKILL)
            again = new_world(workload.notes, workers, since, parameters.timeout)
            crash = max(step.time for step in again) - since if again else None
            return {"start": round(started, 4), "crash": crash and round(crash, 4)}
        finally:
            side.stop()


def tables(results: Mapping[str, Any]) -> list[Table]:
    names = list(dict.fromkeys(run["side"] for run in results["runs"]))
    if not names:
        return [Table("Recovery on GPUs", ("",), (("no GPU on this machine",),))]
    rows = []
    for what, title in (("start", "start of the agent to first step"), ("crash", "SIGKILL of a worker to first step")):
        times = {name: [run[what] for run in results["runs"] if run["side"] == name] for name in names}
        compared = ratio(times.get("hpcelastic", []), times.get("torchrun", []))
        rows.append((title, *map(spread, times.values()), compared))
    note = (
        f"Seconds; median (least–greatest) of {results['parameters']['repeat']}; one node with {results['workers']} "
        f"GPU workers, backend {results['parameters']['backend']}."
    )
    crash = Table("Recovery on GPUs", ("", *names, "ours / torchrun"), tuple(rows), note)
    return [crash, *(resume.tables(results["resumed"]) if results["resumed"] else [])]
