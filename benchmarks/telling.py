"""The cost of telling: what the events and the training totals of an agent take of a processor and of a disk.

Two nodes train, and one worker is killed a few times. The events of that run are then logged again in this process,
which measures the processor time of one event. Totals are read from the marks of eight workers, and written to a file.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.notes import Step, new_world
from benchmarks.report import Table, significant, size
from benchmarks.sides import Ours, Workload
from hpcelastic.agent.training_totals import training_totals
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.protocol.events import Event
from hpcelastic.storage import files
from hpcelastic.storage.events import MAX_QUEUED, EventLog, event_line, read_logs

SCRIPT = Path(__file__).with_name("trains.py")
_NODES, _WORKERS = 2, 8
_TIMEOUT = 60.0

_INTERVAL = 10.0
"""Seconds between two files of totals of a node."""


@dataclass(frozen=True)
class Parameters:
    faults: int = 10
    repeat: int = 5_000
    """Number of events, and of files of totals, whose processor time is measured."""


QUICK = Parameters(faults=2, repeat=500)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as name:
        directory = Path(name)
        run, events = _run(directory, parameters.faults, say)
        event = _time_of_events(directory, events, parameters.repeat)
        say(f"an event: {event * 1e6:.0f} µs of a processor")
        totals, length = _time_of_totals(directory, parameters.repeat)
        say(f"totals: {totals * 1e6:.0f} µs of a processor")
    return {"parameters": asdict(parameters), "run": run, "event": event, "totals": totals, "bytes": length}


def _run(directory: Path, faults: int, say: Callable[[str], None]) -> tuple[dict[str, int], list[Event]]:
    """Return the sizes of the event logs of a run with so many faults, and the events of one node."""
    settings = {"restarts": {"max": faults}}
    side = Ours(Workload(directory, SCRIPT, f"{_NODES}..{_NODES}", script_args=("elastic",), settings=settings))
    since = time.monotonic()
    side.start_all(_NODES)
    try:
        world = _await_world(side, since, ())
        for number in range(faults):
            since = time.monotonic()
            os.kill(next(step.pid for step in world if step.rank == number % _NODES), signal.SIGKILL)
            world = _await_world(side, since, world)
            say(f"fault {number + 1} of {faults}")
    finally:
        side.stop()
    logs = read_logs(side.paths.events)
    found = {
        "rounds": faults + 1,
        "events": sum(map(len, logs.values())),
        "bytes": sum(path.stat().st_size for path in side.paths.events.iterdir()),
    }
    return found, [logged.event for logged in max(logs.values(), key=len)]


def _await_world(side: Ours, since: float, before: Collection[Step]) -> list[Step]:
    world = new_world(side.notes, _NODES, since, _TIMEOUT, before)
    if world is None:
        raise RuntimeError(f"no round of {_NODES} nodes has trained within {_TIMEOUT:g} s")
    return world


def _time_of_events(directory: Path, events: list[Event], repeat: int) -> float:
    """Return the processor seconds of this process for one event, from its making to the written line."""
    batch = [*islice(cycle(events), min(repeat, MAX_QUEUED // 2))]
    written, began = 0, time.process_time()
    while written < repeat:
        log = EventLog(directory / "again.jsonl", "n1")
        for event in batch:
            log.write(event)
        if not log.close(_TIMEOUT):
            raise RuntimeError(f"{len(batch)} events were not written within {_TIMEOUT:g} s")
        written += len(batch)
    return (time.process_time() - began) / written


def _time_of_totals(directory: Path, repeat: int) -> tuple[float, int]:
    """Return the processor seconds for the totals of a node and their file, and the bytes of the file."""
    page, path, line = ControlPage.make(_WORKERS), directory / "totals.jsonl", b""
    try:
        for seat in range(_WORKERS):
            page.marks(seat).write(1, MarkKind.ENTERED, 1)
            for step in range(1000):
                page.marks(seat).write(1, MarkKind.STEP, step)
        began = time.process_time()
        for _ in range(repeat):
            totals = training_totals(page, 1, {seat: seat for seat in range(_WORKERS)})
            assert totals is not None
            line = event_line(totals, "n1")
            files.publish(path, line, durable=False)
        return (time.process_time() - began) / repeat, len(line)
    finally:
        page.close()


def tables(results: Mapping[str, Any]) -> list[Table]:
    run, event, totals = results["run"], results["event"], results["totals"]
    per_round = run["events"] / run["rounds"] / _NODES
    steady = totals / _INTERVAL
    minute = steady + per_round * event / 60
    rows = (
        ("one event", f"{significant(event * 1e6)} µs"),
        (f"totals of {_WORKERS} workers, with their file", f"{significant(totals * 1e6)} µs"),
        ("of a core, while a round runs", f"{significant(100 * steady)} %"),
        ("of a core, with a fault in each minute", f"{significant(100 * minute)} %"),
        ("events of a node in a round that a fault ends", significant(per_round)),
        ("event log of a node for such a round", size(run["bytes"] / run["rounds"] / _NODES)),
        ("beside the log: the file of totals, which is replaced", size(results["bytes"])),
    )
    note = (
        f"Processor time and disk space of an agent for its events and totals. A node writes totals at least every "
        f"{_INTERVAL:g} s, and only three nodes of a round do. The run had {_NODES} nodes and "
        f"{run['rounds'] - 1} faults."
    )
    return [Table("Cost of telling", ("what", "cost"), rows, note)]
