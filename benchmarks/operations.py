"""The operations of an agent on the shared filesystem: in its first round, in a round after a failure, and while idle.

N real agents with sleeping workers run in a directory of a filesystem that counts operations (`metered`). Everything in
it is counted: register, leases, event logs, the workers' logs. Then N runs of one node share the directory, and their
operations are counted while nothing happens. So are those of hundreds of runs, whose agents have no workers.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import metered
from benchmarks.machine import CHECKOUT
from benchmarks.metered import KINDS
from benchmarks.notes import sleepers, until
from benchmarks.processes import end_tree, send
from benchmarks.report import Table, significant, size
from benchmarks.sides import NO_PRELOAD, Ours, Workload

SCRIPT = Path(__file__).with_name("sleeps.py")

_TIMEOUT = 120.0

_HEAD = ("runs", "operations a second of all", *KINDS)
_NOTE = "Runs of one node with one worker, while nothing happens. The kinds are those of one run in a minute."


_MANY_NOTE = "The nodes have no workers, and their agents are forked from one process. Otherwise as above."


@dataclass(frozen=True)
class Parameters:
    agents: tuple[int, ...] = (1, 3, 8, 16)
    runs: tuple[int, ...] = (1, 4, 16)
    """Numbers of runs that share the directory."""

    many: tuple[tuple[int, int], ...] = ((16, 1), (1000, 1), (200, 3))
    """Numbers of runs without workers that share the directory, and of the nodes of each."""

    settle: float = 25.0
    """Seconds from the start of a round until nothing happens. Nodes need 20 s to choose the durations of their leases.
    """

    idle: float = 30.0
    """Seconds of measurement while nothing happens. Results are scaled to a minute."""


QUICK = Parameters(agents=(1, 3), runs=(1, 4), many=((4, 1), (4, 3)), settle=3.0, idle=10.0)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Count the operations of all agents together, by the number of agents and the kind of event."""
    if reason := metered.unavailable():
        say(f"left out: {reason}")
        return {"parameters": asdict(parameters), "left_out": [reason], "runs": [], "together": [], "many": []}
    runs = []
    for count in parameters.agents:
        say(f"{count} agents")
        runs += [{"agents": count, "what": what, "counts": counts} for what, counts in _counted(count, parameters)]
    together = []
    for count in parameters.runs:
        say(f"{count} runs of one node")
        together.append({"runs": count, "counts": _counted_together(count, parameters)})
    many = []
    for count, nodes in parameters.many:
        say(f"{count} runs of {nodes} nodes without workers")
        many.append({"runs": count, "nodes": nodes, "counts": _counted_without_workers(count, nodes, parameters)})
    return {"parameters": asdict(parameters), "left_out": [], "runs": runs, "together": together, "many": many}


def _counted(count: int, parameters: Parameters) -> list[tuple[str, dict[str, float]]]:
    with metered.metered_mount() as mount, tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as notes:
        workload = Workload(mount.directory, SCRIPT, f"{count}..{count}", notes_in=Path(notes), settings=NO_PRELOAD)
        side = Ours(workload)
        marks = [mount.counts()]
        try:
            side.start_all(count)
            _await_sleepers(workload.notes, count)
            marks.append(mount.counts())
            quiet = _idle_minute(mount, parameters)
            marks.append(mount.counts())
            send([max(sleepers(workload.notes))], signal.SIGKILL)
            _await_sleepers(workload.notes, 2 * count)
            marks.append(mount.counts())
        finally:
            side.stop()
    return [
        ("first round", dict(marks[1] - marks[0])),
        ("round after a failure", dict(marks[3] - marks[2])),
        ("idle minute", quiet),
    ]


def _counted_together(runs: int, parameters: Parameters) -> dict[str, float]:
    """Return the operations of so many runs of one node in an idle minute."""
    with metered.metered_mount() as mount, tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as notes:
        sides = []
        try:
            for index in range(runs):
                settings = {**NO_PRELOAD, "run": {"name": f"run{index}", "directory": str(mount.directory)}}
                sides.append(Ours(Workload(mount.directory, SCRIPT, "1", notes_in=Path(notes), settings=settings)))
                sides[-1].start_all(1)
            _await_sleepers(Path(notes), runs)
            return _idle_minute(mount, parameters)
        finally:
            for side in sides:
                side.stop()


def _counted_without_workers(runs: int, nodes: int, parameters: Parameters) -> dict[str, float]:
    with metered.metered_mount() as mount:
        command = [sys.executable, "-m", "benchmarks.idle_runs", str(mount.directory), str(runs), str(nodes)]
        parent = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        try:
            assert parent.stdout is not None
            joined = sum(1 for _ in islice(parent.stdout, runs * nodes))
            if joined < runs * nodes:
                raise RuntimeError(f"{joined} of {runs * nodes} nodes have joined")
            return _idle_minute(mount, parameters)
        finally:
            end_tree(parent.pid)
            parent.communicate()


def _idle_minute(mount: metered.Mount, parameters: Parameters) -> dict[str, float]:
    """Return the operations of a minute in which nothing happens."""
    time.sleep(parameters.settle)
    before = mount.counts()
    time.sleep(parameters.idle)
    return {what: number * 60 / parameters.idle for what, number in (mount.counts() - before).items()}


def _await_sleepers(notes: Path, count: int) -> None:
    found = until(lambda: True if len(sleepers(notes)) >= count else None, time.monotonic() + _TIMEOUT)
    if found is None:
        raise RuntimeError(f"{len(sleepers(notes))} of {count} workers started within {_TIMEOUT:g} s")


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows = []
    for run in results["runs"]:
        counts, agents = run["counts"], run["agents"]
        per_agent = [counts.get(kind, 0) / agents for kind in KINDS]
        sizes = [size(counts.get(what, 0) / agents) for what in ("bytes read", "bytes written")]
        rows.append((run["what"], str(agents), significant(sum(per_agent)), *map(significant, per_agent), *sizes))
    head = ("per agent", "agents", "operations", *KINDS, "read", "written")
    note = (
        "Means over all agents with one worker each. Names and attributes are cached for 3 s, as with NFS. "
        "The first round begins with the start of the agents."
    )
    operations = Table("Operations on the filesystem", head, tuple(rows), " ".join([note, *results["left_out"]]))
    shared = Table("Runs that share a directory", _HEAD, tuple(map(_of_runs, results["together"])), _NOTE)
    if not results.get("many"):
        return [operations, shared]
    many = ((row[0], str(each["nodes"]), *row[1:]) for each in results["many"] for row in [_of_runs(each)])
    head = ("runs", "nodes of each", *_HEAD[1:])
    return [operations, shared, Table("Hundreds of runs that share a directory", head, tuple(many), _MANY_NOTE)]


def _of_runs(measured: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of runs that share a directory."""
    each = [measured["counts"].get(kind, 0) / measured["runs"] for kind in KINDS]
    return (str(measured["runs"]), significant(sum(each) * measured["runs"] / 60), *map(significant, each))
