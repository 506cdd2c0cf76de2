"""What checkpoints cost: how long a save stops the training, how much slower steps are, and how long a load takes.

One agent runs on one node, with one worker, which measures itself. The other side of each ratio is measured in turn
with ours in the same process: a copy to memory that exists, torch.save with fsync, torch.load, and steps without saves.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.notes import until
from benchmarks.report import Table, ratio, spread
from benchmarks.saves import SAVE_EVERY, STEP, STEP_STATE
from benchmarks.sides import Ours, Workload

SCRIPT = Path(__file__).with_name("saves.py")
_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Parameters:
    mib: int = 1024
    """Size of the state that is saved and loaded, in MiB."""

    steps: int = 100
    """Number of training steps with saves, and without, in each repetition."""

    repeat: int = 5


QUICK = Parameters(mib=256, steps=20, repeat=3)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the worker, and return its measurements, in seconds."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        arguments = (str(parameters.mib), str(parameters.repeat), str(parameters.steps))
        side = Ours(Workload(Path(directory), SCRIPT, "1..1", script_args=arguments))
        side.start(0)
        try:
            path = side.notes / "results.json"
            found = until(lambda: path.read_text() if path.exists() else None, time.monotonic() + _TIMEOUT)
            if found is None:
                raise RuntimeError(f"the worker has not finished within {_TIMEOUT:g} s")
        finally:
            side.stop()
    seconds = json.loads(found)
    for name, values in seconds.items():
        say(f"{name}: {spread(values)} s")
    return {"parameters": asdict(parameters), "seconds": seconds}


def tables(results: Mapping[str, Any]) -> list[Table]:
    seconds, parameters = results["seconds"], results["parameters"]
    size = f"{parameters['mib'] / 1024:g} GiB"
    saves = (
        ("save(wait=False) stops the training for", "background", "one copy to memory", "copy"),
        ("load() from memory, which checks all bytes", "memory", "one copy to memory", "copy"),
        ("load(like=...) from memory, which checks all bytes", "in place", "one copy to memory", "copy"),
        ("save()", "wait", "torch.save and fsync", "torch.save"),
        ("load() from disk, which checks all bytes", "load", "torch.load", "torch.load"),
    )
    rows = [
        (what, spread(seconds[ours]), other, spread(seconds[theirs]), ratio(seconds[ours], seconds[theirs]))
        for what, ours, other, theirs in saves
    ]
    kinds = (("saves in the background", "steps with saves"), ("snapshots, auto", "steps with snapshots"))
    rows += [
        (
            f"steps with {what}",
            spread(seconds[ours]),
            "steps without",
            spread(seconds["steps"]),
            ratio(seconds[ours], seconds["steps"]),
        )
        for what, ours in kinds
    ]
    note = (
        f"Seconds, median (least–greatest) of {parameters['repeat']}. The state has {size}. A step takes about "
        f"{STEP * 1000:g} ms, and the state of {STEP_STATE} MiB is saved every {SAVE_EVERY} steps, or snapshots of it "
        "are taken as often as Elastic takes them. The agent works on the same disk and the same cores meanwhile."
    )
    return [Table("Saves and loads", ("", "seconds", "compared with", "seconds", "ratio"), rows, note)]
