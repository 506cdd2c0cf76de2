"""The operations of an agent on the shared filesystem: in its first round, in a round after a failure, and while idle.

N real agents with sleeping workers run in a directory of a filesystem that counts operations (`metered`). Everything in
it is counted: register, leases, event logs, the workers' logs.
"""

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import metered
from benchmarks.metered import KINDS
from benchmarks.notes import sleepers, until
from benchmarks.processes import send
from benchmarks.report import Table, significant, size
from benchmarks.sides import NO_PRELOAD, Ours, Workload

SCRIPT = Path(__file__).with_name("sleeps.py")

_SETTLE = 3.0
"""Seconds after the start of a round until all its operations have been counted."""

_TIMEOUT = 120.0


@dataclass(frozen=True)
class Parameters:
    agents: tuple[int, ...] = (1, 3, 8, 16)
    idle: float = 30.0
    """Seconds of measurement while nothing happens. Results are scaled to a minute."""


QUICK = Parameters(agents=(1, 3), idle=10.0)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Count the operations of all agents together, by the number of agents and the kind of event."""
    if reason := metered.unavailable():
        say(f"left out: {reason}")
        return {"parameters": asdict(parameters), "left_out": [reason], "runs": []}
    runs = []
    for count in parameters.agents:
        say(f"{count} agents")
        runs += [{"agents": count, "what": what, "counts": counts} for what, counts in _counted(count, parameters.idle)]
    return {"parameters": asdict(parameters), "left_out": [], "runs": runs}


def _counted(count: int, idle: float) -> list[tuple[str, dict[str, float]]]:
    with metered.metered_mount() as mount, tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as notes:
        workload = Workload(mount.directory, SCRIPT, f"{count}..{count}", notes_in=Path(notes), settings=NO_PRELOAD)
        side = Ours(workload)
        marks = [mount.counts()]
        try:
            side.start_all(count)
            _await_sleepers(workload.notes, count)
            marks.append(mount.counts())
            time.sleep(_SETTLE)
            before = mount.counts()
            time.sleep(idle)
            quiet = Counter({what: number * 60 / idle for what, number in (mount.counts() - before).items()})
            marks.append(mount.counts())
            send([max(sleepers(workload.notes))], signal.SIGKILL)
            _await_sleepers(workload.notes, 2 * count)
            marks.append(mount.counts())
        finally:
            side.stop()
    return [
        ("first round", dict(marks[1] - marks[0])),
        ("round after a failure", dict(marks[3] - marks[2])),
        ("idle minute", dict(quiet)),
    ]


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
    return [Table("Operations on the filesystem", head, tuple(rows), " ".join([note, *results["left_out"]]))]
