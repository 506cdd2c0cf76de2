"""The cost of watching a worker: its thread that samples whether the main thread waits for other ranks.

A process works in short blocks, in turn with and without the thread, so that both sides see the same machine. The
result is the ratio of their speeds.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import Table


@dataclass(frozen=True)
class Parameters:
    pairs: int = 150
    """Number of blocks of each side."""

    block: float = 0.3
    """Seconds of a block."""


QUICK = Parameters(pairs=10)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure in a process of its own, which has no other threads."""
    runs = []
    for work in _WORK:
        command = [sys.executable, "-m", "benchmarks.watching", work, str(parameters.pairs), str(parameters.block)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs.append({"work": work, "ratios": json.loads(done.stdout)})
        say(f"{work}: {_slower(runs[-1]['ratios'])}")
    return {"parameters": asdict(parameters), "runs": runs}


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows = tuple((run["work"], _slower(run["ratios"])) for run in results["runs"])
    parameters = results["parameters"]
    note = (
        f"Mean and standard error of {parameters['pairs']} pairs of blocks of {parameters['block']:g} s, with and "
        "without the thread. The worker has one process group, whose number of collectives is copied every 0.2 s."
    )
    return [Table("Cost of watching a worker", ("work of the main thread", "slower by"), rows, note)]


def _slower(ratios: list[float]) -> str:
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    return f"{100 * (1 - mean):.2f} % ± {100 * error:.2f} %"


# In the process that works


def _python() -> None:
    sum(number * number for number in range(2000))


def _products() -> Callable[[], None]:
    import torch

    torch.set_num_threads(1)
    one, product = torch.randn(128, 128), torch.empty(128, 128)

    def multiply() -> None:
        torch.mm(one, one, out=product)

    return multiply


_WORK: dict[str, Callable[[], Callable[[], None]]] = {
    "Python code, which holds the interpreter lock": lambda: _python,
    "matrix products": _products,
}


def _run(work: Callable[[], None], pairs: int, block: float) -> list[float]:
    """Return the ratio of the speeds with and without the thread, for each pair of blocks."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    from hpcelastic.worker.collective_watch import INTERVAL, CollectiveWatch, Sampler

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    on, wake = threading.Event(), threading.Event()
    with tempfile.TemporaryFile() as memory:
        watch = CollectiveWatch(memory.fileno(), distributed_c10d)  # its own thread starts with the next group only

        def sample() -> None:
            sampler = Sampler()
            while on.wait():
                if time.monotonic() >= watch._copied + INTERVAL:
                    watch._copy(sampler.samples)
                sampler.wait(wake)
                sampler.sample()

        threading.Thread(target=sample, daemon=True).start()

        def rate(watched: bool) -> float:
            (on.set if watched else on.clear)()
            time.sleep(0.1)  # until the thread waits
            count, start = 0, time.perf_counter()
            while time.perf_counter() < start + block:
                work()
                count += 1
            return count / (time.perf_counter() - start)

        ratios = []
        for number in range(pairs):
            order = (True, False) if number % 2 else (False, True)
            rates = {watched: rate(watched) for watched in order}
            ratios.append(rates[True] / rates[False])
        return ratios


if __name__ == "__main__":
    print(json.dumps(_run(_WORK[sys.argv[1]](), int(sys.argv[2]), float(sys.argv[3]))))
