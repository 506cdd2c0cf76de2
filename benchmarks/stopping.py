"""The cost of `should_stop` in a step: the time of a call without a stop request, by the number of ranks.

Ranks are processes on this machine in a gloo group. In one measurement, ranks only call it, so each call waits for the
vote of the previous call. In another, ranks sleep between calls for a short step, so the vote has ended meanwhile.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.machine import CHECKOUT
from benchmarks.processes import end_tree
from benchmarks.report import Table, spread
from hpcelastic.ipc.control_page import ControlPage

_TIMEOUT = 120.0


@dataclass(frozen=True)
class Parameters:
    ranks: tuple[int, ...] = (1, 2, 8)
    calls: int = 500
    steps: tuple[float, ...] = (0.0, 0.02)
    """Seconds between one call and the next."""

    repeat: int = 3


QUICK = Parameters(calls=200, repeat=1)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the median time of a call on the slowest rank, ``repeat`` times."""
    runs = []
    for ranks in parameters.ranks:
        for step in parameters.steps:
            for _ in range(parameters.repeat):
                seconds = _race(ranks, parameters.calls, step)
                runs.append({"ranks": ranks, "step": step, "seconds": seconds})
                say(f"{ranks} ranks, steps of {step:g} s: {seconds * 1e6:.1f} µs")
    return {"parameters": asdict(parameters), "runs": runs}


def _race(ranks: int, calls: int, step: float) -> float:
    control_page = ControlPage.make(ranks)
    processes: list[subprocess.Popen[str]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
            command = [sys.executable, "-m", "benchmarks.stopping", f"{directory}/meet", str(calls), str(step)]
            for rank in range(ranks):
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "HPCELASTIC_ROUND": 1}
                environ = {**os.environ, **{name: str(value) for name, value in place.items()}}
                environ |= {"HPCELASTIC_CONTROL_PAGE": control_page.name, "OMP_NUM_THREADS": "1"}
                processes.append(
                    subprocess.Popen(command, env=environ, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
                )
            return float(max(json.loads(process.communicate(timeout=_TIMEOUT)[0]) for process in processes))
    finally:
        for process in processes:
            if process.poll() is None:
                end_tree(process.pid)
                process.wait()
        control_page.close()


def main(meet: str, calls: str, step: str) -> None:
    """Call `should_stop` ``calls`` times and print the median of the seconds."""
    import torch.distributed as dist

    from hpcelastic.training import should_stop

    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    should_stop()  # the first call creates the group for the votes
    taken = []
    for _ in range(int(calls)):
        time.sleep(float(step))
        since = time.perf_counter()
        should_stop()
        taken.append(time.perf_counter() - since)
    print(json.dumps(statistics.median(taken)), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def tables(results: Mapping[str, Any]) -> list[Table]:
    parameters = results["parameters"]
    rows = []
    for ranks in parameters["ranks"]:
        cells = (_microseconds(results, ranks, step) for step in parameters["steps"])
        rows.append((str(ranks), *map(spread, cells)))
    head = ("ranks", *(f"steps of {step * 1000:g} ms" if step else "only calls" for step in parameters["steps"]))
    note = (
        f"Microseconds of a call on the slowest rank: the median of {parameters['calls']} calls. The table has the "
        f"median (least–greatest) of {parameters['repeat']} such values. All ranks share this machine's cores."
    )
    return [Table("A call of should_stop()", head, tuple(rows), note)]


def _microseconds(results: Mapping[str, Any], ranks: int, step: float) -> list[float | None]:
    runs = [run for run in results["runs"] if (run["ranks"], run["step"]) == (ranks, step)]
    return [run["seconds"] * 1e6 for run in runs]


if __name__ == "__main__":
    main(*sys.argv[1:])
