"""The time until the other nodes continue after a node has become silent, by the number of nodes and the lease.

All processes of one node are stopped with SIGSTOP, so that its connections stay open and only its lease can end. The
default lease, whose duration each agent chooses, is compared with a fixed one of 10 s. Workers only sleep.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.notes import sleepers, until
from benchmarks.processes import send
from benchmarks.report import Table, ratio, spread
from benchmarks.sides import NO_PRELOAD, Ours, Workload
from hpcelastic.protocol.events import StateChanged
from hpcelastic.protocol.state import Phase

SCRIPT = Path(__file__).with_name("sleeps.py")
LEASES: Mapping[str, Mapping[str, Any]] = {"default": {}, "10 s": {"lease": 10}}

_TIMEOUT = 120.0
"""Seconds in which all workers start, and in which the others continue."""

_POLL_INTERVAL = 0.5
"""Seconds between two reads of all event logs, which take processor time from the agents. Each event has its time."""


@dataclass(frozen=True)
class Parameters:
    nodes: tuple[int, ...] = (3, 16, 64)
    repeat: int = 3
    settle: float = 30.0
    """Seconds from the start of the last worker to the fault, in which agents choose the duration of their leases."""

    leases: tuple[str, ...] = tuple(LEASES)


QUICK = Parameters(nodes=(3,), repeat=1)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Silence one node of each number of nodes, with each lease in turn, ``repeat`` times."""
    runs = []
    for nodes in parameters.nodes:
        for _ in range(parameters.repeat):
            for lease in parameters.leases:
                seconds = _silenced(nodes, lease, parameters.settle)
                say(f"{nodes} nodes, lease: {lease}: {spread([seconds['all']])} s")
                runs.append({"nodes": nodes, "lease": lease, **seconds})
    return {"parameters": asdict(parameters), "runs": runs}


def _silenced(nodes: int, lease: str, settle: float) -> dict[str, float | None]:
    """Return the seconds from the fault until the round has ended, and until all others know the next round."""
    settings = {**NO_PRELOAD, "rendezvous": LEASES[lease]}
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        side = Ours(Workload(Path(directory), SCRIPT, f"{nodes - 1}..{nodes}", settings=settings))
        try:
            side.start_all(nodes)
            if until(lambda: len(sleepers(side.notes)) >= nodes or None, time.monotonic() + _TIMEOUT) is None:
                raise RuntimeError(f"the workers of {nodes} nodes did not start within {_TIMEOUT:g} s")
            time.sleep(settle)
            processes = side.processes(nodes - 1)
            since = time.time()
            send(processes, signal.SIGSTOP)
            deadline = time.monotonic() + _TIMEOUT
            while (found := _times(side, since, nodes))["all"] is None and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL)
            return found
        finally:
            side.stop()


def _times(side: Ours, since: float, nodes: int) -> dict[str, float | None]:
    changes = [(one, one.event) for one in side.events() if isinstance(one.event, StateChanged) and one.time > since]
    ended = [one.time - since for one, event in changes if event.phase is Phase.JOINING]
    formed = [one.time - since for one, event in changes if event.phase is Phase.RUNNING]
    return {
        "ended": round(min(ended), 3) if ended else None,
        "all": round(max(formed), 3) if len(formed) >= nodes - 1 else None,
    }


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows = []
    for nodes in sorted({run["nodes"] for run in results["runs"]}):
        runs = {
            name: [run for run in results["runs"] if (run["nodes"], run["lease"]) == (nodes, name)] for name in LEASES
        }
        for name, found in runs.items():
            times = [run["all"] for run in found]
            if times:
                others = [run["all"] for run in runs["10 s"]]
                rows.append(
                    (str(nodes), name, spread([run["ended"] for run in found]), spread(times), ratio(times, others))
                )
    note = (
        f"Seconds from the SIGSTOP; median (least–greatest) of {results['parameters']['repeat']}. The round ends when "
        "the first agent has decided that. Then all other agents know the next round, and start their workers."
    )
    head = ("nodes", "lease", "the round ends", "all others in the next round", "this lease / 10 s")
    return [Table("A silent node", head, tuple(rows), note)]
