"""The time until a hang is named, and until all ranks step again: a script with progress marks, and one without.

Three nodes have one worker each. One worker stops making steps in its own code, and the others wait for it in a
collective. With marks (`Elastic`), its process is replaced. Without a line of hpcelastic in the script, the hang is
reported. All settings are the defaults.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.notes import new_world, until
from benchmarks.report import Table, spread
from benchmarks.sides import Ours, Workload
from hpcelastic.protocol.events import HangExamined

SCRIPT = Path(__file__).with_name("hanging.py")
NODES = 3
_TIMEOUT = 120.0
"""Seconds in which training starts, and in which it continues."""

_POLL_INTERVAL = 0.2
"""Seconds between two reads of all event logs. Each event has its time."""


@dataclass(frozen=True)
class Parameters:
    scripts: tuple[str, ...] = ("elastic", "plain")
    repeat: int = 3
    settle: float = 5.0
    """Seconds of training before the hang."""

    timeout: float = 400.0
    """Seconds after which a hang counts as not found."""


QUICK = Parameters(scripts=("elastic",), repeat=1, settle=1.0)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Let a worker hang with each script, ``repeat`` times; once with the script whose limit is five minutes."""
    runs = []
    for script in parameters.scripts:
        for _ in range(parameters.repeat if script == "elastic" else 1):
            runs.append({"script": script, **_hung(script, parameters)})
            say(f"{script}: {runs[-1]}")
    return {"parameters": asdict(parameters), "runs": runs}


def _hung(script: str, parameters: Parameters) -> dict[str, Any]:
    """Return the seconds from the beginning of the hang until it is named, and until all ranks step again."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        side = Ours(Workload(Path(directory), SCRIPT, f"2..{NODES}", script_args=(script,)))
        try:
            side.start_all(NODES)
            before = new_world(side.notes, NODES, 0.0, time.monotonic() + _TIMEOUT)
            if before is None:
                raise RuntimeError(f"training did not start within {_TIMEOUT:g} s")
            time.sleep(parameters.settle)
            (side.notes / "hang").touch()
            began = until(lambda: _began(side.notes), time.monotonic() + _TIMEOUT)
            if began is None:
                raise RuntimeError(f"the worker has not read the request within {_TIMEOUT:g} s")
            deadline = time.monotonic() + parameters.timeout
            while (found := _verdict(side)) is None and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL)
            named = None if found is None else round(found[0] - began[1], 3)
            again = None
            if script == "elastic" and found is not None:
                steps = new_world(side.notes, NODES, began[0], _TIMEOUT, before)
                again = None if steps is None else round(max(step.time for step in steps) - began[0], 3)
            return {"named": named, "again": again, "text": None if found is None else found[1].text}
        finally:
            side.stop()


def _began(notes: Path) -> tuple[float, float] | None:
    """Return the beginning of the hang, by the monotonic clock and since the epoch."""
    path = notes / "hung"
    return None if not path.exists() else tuple(json.loads(path.read_text()))


def _verdict(side: Ours) -> tuple[float, HangExamined] | None:
    """Return the first verdict that something follows, with its time."""
    for logged in side.events():
        if isinstance(logged.event, HangExamined) and logged.event.action != "none":
            return logged.time, logged.event
    return None


def tables(results: Mapping[str, Any]) -> list[Table]:
    names = {"elastic": "with `Elastic`: the process is replaced", "plain": "without hpcelastic: a report"}
    rows = []
    for script in dict.fromkeys(run["script"] for run in results["runs"]):
        runs = [run for run in results["runs"] if run["script"] == script]
        right = sum("rank 1 " in (run["text"] or "") and "hanging.py:" in run["text"] for run in runs)
        again = spread([run["again"] for run in runs]) if script == "elastic" else "-"
        rows.append((names[script], spread([run["named"] for run in runs]), again, f"{right} of {len(runs)}"))
    note = (
        "Seconds from the beginning of the hang; median (least–greatest). The rank that hangs is rank 1. A step takes "
        "20 ms, so its limit is the least one, 10 s; without marks it is 5 minutes."
    )
    return [Table("A hang", ("script", "named", "all ranks step again", "rank and line right"), tuple(rows), note)]
