"""The cost of an agent on its node: its start time, its memory, and its CPU time while idle.

One agent runs on one node, with a worker that sleeps. The processes of hpcelastic's agent are compared with torchrun.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.notes import sleepers, until
from benchmarks.processes import command, cost, descendants
from benchmarks.report import Table, ratio, significant, size, spread
from benchmarks.sides import NO_PRELOAD, Ours, Torchrun, Workload

SCRIPT = Path(__file__).with_name("sleeps.py")

_PARTS = {"guard_main.py": "guard", "fork_server_main.py": "fork server", "store_server_main": "store server"}
"""Processes by a part of their command lines."""

_TIMEOUT = 60.0
_SETTLE = 3.0


@dataclass(frozen=True)
class Parameters:
    repeat: int = 5
    idle: float = 30.0
    """Seconds of measurement while nothing happens. Results are scaled to a minute."""

    sides: tuple[str, ...] = ()
    """Names of launchers; all if empty."""


QUICK = Parameters(repeat=2, idle=10.0)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the starts of all launchers in turn, then the idle costs of each."""
    sides = {name: make for name, make in _SIDES.items() if not parameters.sides or name in parameters.sides}
    starts = []
    for _ in range(parameters.repeat):
        for name, make in sides.items():
            starts.append({"side": name, **_started(make)})
            say(f"{name}: ready after {spread([starts[-1]['ready']])} s")
    return {"parameters": asdict(parameters), "starts": starts, "idle": _idle_costs(sides, parameters.idle)}


def _ours(directory: Path) -> Ours:
    return Ours(Workload(directory, SCRIPT, "1..1"))


def _without_preload(directory: Path) -> Ours:
    return Ours(Workload(directory, SCRIPT, "1..1", settings=NO_PRELOAD))


def _torchrun(directory: Path) -> Torchrun:
    return Torchrun(Workload(directory, SCRIPT, "1..1"))


_SIDES: dict[str, Callable[[Path], Any]] = {"hpcelastic": _ours, "torchrun": _torchrun}
if NO_PRELOAD:
    _SIDES["hpcelastic, nothing preloaded"] = _without_preload


def _started(make: Callable[[Path], Any]) -> dict[str, float]:
    """Return the seconds until the agent takes part, and until its worker runs the script's first line."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        side = make(Path(directory))
        since = time.monotonic()
        side.start(0)
        try:
            ready = until(lambda: time.monotonic() if side.takes_part() else None, since + _TIMEOUT)
            up = until(lambda: max(sleepers(side.notes).values(), default=None), since + _TIMEOUT)
        finally:
            side.stop()
    if ready is None or up is None:
        raise RuntimeError(f"the agent was not ready, or its worker did not start, within {_TIMEOUT:g} s")
    return {"ready": round(ready - since, 4), "worker": round(up - since, 4)}


def _idle_costs(sides: Mapping[str, Callable[[Path], Any]], idle: float) -> list[dict[str, Any]]:
    """Return the costs of each process of an agent, without its worker."""
    found = []
    for name, make in sides.items():
        with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
            side = make(Path(directory))
            side.start(0)
            try:
                until(lambda side=side: sleepers(side.notes) or None, time.monotonic() + _TIMEOUT)
                time.sleep(_SETTLE)
                agent, workers = side.agent(0), set(sleepers(side.notes))
                everyone = [pid for pid in (agent, *descendants(agent)) if pid not in workers]
                before, parts = {pid: cost(pid) for pid in everyone}, _parts(agent, everyone)
                time.sleep(idle)
                for pid in everyone:
                    now = cost(pid)
                    cpu = (now.cpu - before[pid].cpu) * 60 / idle
                    found.append({"side": name, "part": parts[pid], **asdict(now), "cpu": round(cpu, 3)})
            finally:
                side.stop()
    return found


def _parts(agent: int, everyone: list[int]) -> dict[int, str]:
    """Return the role of each process. A fork of the fork server has the same command line and a later start."""
    found: dict[int, str] = {}
    for pid in sorted(everyone):
        words = command(pid)
        part = "agent" if pid == agent else next((part for mark, part in _PARTS.items() if mark in words), words[-40:])
        found[pid] = f"fork of the {part}" if part in found.values() else part
    return found


def tables(results: Mapping[str, Any]) -> list[Table]:
    return [_starts(results), _idle(results)]


def _starts(results: Mapping[str, Any]) -> Table:
    sides = list(dict.fromkeys(start["side"] for start in results["starts"]))
    rows = []
    for name, what in (("takes part", "ready"), ("worker's first line", "worker")):
        times = {side: [start[what] for start in results["starts"] if start["side"] == side] for side in sides}
        rows.append((name, *map(spread, times.values()), ratio(times.get("hpcelastic", []), times.get("torchrun", []))))
    note = (
        f"Seconds from the start of the process; median (least–greatest) of {results['parameters']['repeat']}. "
        "hpcelastic's agent takes part once its lease exists, and torchrun's once its rendezvous store listens."
    )
    return Table("Start of an agent", ("until", *sides, "ours / torchrun"), tuple(rows), note)


def _idle(results: Mapping[str, Any]) -> Table:
    rows = []
    for one in results["idle"]:
        cpu = significant(one["cpu"] * 1000)
        rows.append((one["side"], one["part"], size(one["rss"]), size(one["pss"]), size(one["uss"]), cpu))
    note = (
        "RSS contains shared pages completely, PSS contains a share of them, and USS none. The worker is not counted."
    )
    head = ("side", "process", "RSS", "PSS", "USS", "CPU in an idle minute (ms)")
    return Table("Memory and processor of an agent", head, tuple(rows), note)
