"""The next step of a training after the death of a worker or of a node: until the other ranks step again, and all.

Three nodes have one worker each. With `Elastic` the other processes stay, no step is lost, and a worker that was killed
starts anew beside them. Without it, and under torchrun, all processes start anew and load the newest checkpoint, which
the script saves every 50 steps. torchft keeps the other processes, too.

Also the cost of the boundary of a step, in a process without faults.
"""

import json
import os
import signal
import tempfile
import time
import timeit
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.machine import CHECKOUT
from benchmarks.notes import until
from benchmarks.processes import send
from benchmarks.report import Table, attempts_note, is_hopeless, ratio, spread
from benchmarks.sides import FT_LAUNCHER, TORCHFT, FtLauncher, Ours, TorchFt, Torchrun, Workload, why_not

SCRIPT, EXAMPLE = (Path(__file__).with_name(name) for name in ("trains.py", "example.py"))
NODES = 3
_TIMEOUT = 60.0
"""Seconds after which a training counts as one that does not continue, as is often the case with torchrun."""

SHARDED = "hpcelastic, Elastic with FSDP2"
EXAMPLES = ("examples/digits/train_elastic.py", "examples/digits/train.py")
"""Scripts that are measured unchanged. They import scikit-learn."""

_SIDES: Mapping[str, tuple[Callable[[Workload], Any], str]] = {
    "hpcelastic, Elastic": (Ours, "elastic"),
    SHARDED: (Ours, "sharded"),
    "hpcelastic, a plain script": (Ours, "plain"),
    "torchrun": (Torchrun, "plain"),
    "ft_launcher": (FtLauncher, "plain"),
    "torchft": (TorchFt, "torchft"),
    **{name: (Ours, name) for name in EXAMPLES},
}
"""Each launcher, with a mode of the script trains.py or an example."""

_PEERS = {"ft_launcher": FT_LAUNCHER, "torchft": TORCHFT}
"""Launchers that may not be available."""

WORKER, NODE = "a worker is killed", "a node is killed"


@dataclass(frozen=True)
class Parameters:
    repeat: int = 5
    settle: float = 10.0
    """Seconds between the first step of all ranks and the fault, in which fork servers learn the imports."""

    builds: tuple[float, ...] = (0.0, 5.0)
    """Seconds that the script needs to build its model. Other launchers run with the first value only."""

    attempts: int = 2
    """Repetitions of a scenario with a launcher if training does not continue in any of them."""

    sides: tuple[str, ...] = ()
    """Names of launchers; all with replicated state if empty."""

    examples: tuple[str, ...] = EXAMPLES
    cases: tuple[str, ...] = (WORKER, NODE)
    boundaries: int = 2000
    """Boundaries that are timed at once."""

    device: str = "cpu"
    """``cuda`` for all processes on one GPU, with NCCL."""


QUICK = Parameters(repeat=1, settle=2.0, builds=(0.0,), boundaries=200)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all launchers that are available in turn."""
    faults: list[dict[str, Any]] = []
    chosen = parameters.sides or tuple(name for name in _SIDES if name not in (SHARDED, *EXAMPLES))
    missing = {name: why for name in chosen if name in _PEERS and (why := why_not(_PEERS[name]))}
    for why in missing.values():
        say(why)
    for _ in range(parameters.repeat):
        for build in parameters.builds:
            for case in parameters.cases:
                for side in (name for name in chosen if name not in missing and _is_compared(name, build, parameters)):
                    if is_hopeless(
                        [one["seconds"] for one in faults if _key(one) == (side, case, build)], parameters.attempts
                    ):
                        continue
                    found = {"side": side, "case": case, "build": build, **fault(side, case, build, parameters)}
                    faults.append(found)
                    say(f"{side}, {case}, {build:g} s to build: {found}")
    examples = []
    for _ in range(parameters.repeat):
        for name, case in product(parameters.examples, parameters.cases):
            examples.append({"side": name, "case": case, "build": 0.0, **fault(name, case, 0.0, parameters)})
            say(f"{name}, {case}: {examples[-1]}")
    found = {"missing": [*missing.values()], "faults": faults, "examples": examples}
    return {"parameters": asdict(parameters), **found, **_boundary(parameters)}


def _key(found: Mapping[str, Any]) -> tuple[str, str, float]:
    return found["side"], found["case"], found["build"]


def _is_compared(side: str, build: float, parameters: Parameters) -> bool:
    """Return whether a launcher runs a script that needs so many seconds to build its model."""
    return _SIDES[side][0] is Ours or build == parameters.builds[0]


def _boundary(parameters: Parameters) -> dict[str, list[float]]:
    """Return the microseconds of a boundary without the vote, and those of them that numpy's generator takes."""
    import numpy
    import torch

    from hpcelastic.training import Elastic, GlobalBatches

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1))
    elastic = Elastic(model=model, optimizer=torch.optim.AdamW(model.parameters()), batches=GlobalBatches(600, 60))
    elastic._small.find_buffers([model])

    def commit() -> None:
        elastic._commit(elastic.step + 1, elastic.samples + 60)

    found: dict[str, list[float]] = {"boundary": [], "numpy": []}
    for _ in range(parameters.repeat):
        for name, call in (("boundary", commit), ("numpy", numpy.random.get_state)):
            seconds = timeit.timeit(call, number=parameters.boundaries)
            found[name].append(round(1e6 * seconds / parameters.boundaries, 2))
    return found


def fault(name: str, case: str, build: float, parameters: Parameters) -> dict[str, Any]:
    """Return the seconds until all ranks step again, None if they do not, and the number of repeated steps."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        make, mode = _SIDES[name]
        settings = {"rendezvous": {"last_call": 2.0}, "restarts": {"max": 3}}
        script, arguments = SCRIPT, (mode, f"{build:g}", parameters.device)
        if name in EXAMPLES:
            script, arguments = EXAMPLE, (str(CHECKOUT / name), "--epochs", "100000", "--step-time", "0.02")
        workload = Workload(Path(directory), script, f"2..{NODES}", script_args=arguments, settings=settings)
        side = make(workload)
        side.start_all(NODES)
        try:
            world = side.world(NODES)
            before = until(lambda: _all_step(side.notes, 0.0, world), time.monotonic() + _TIMEOUT)
            if before is None:
                raise RuntimeError(f"{name}: the workers have made no step within {_TIMEOUT:g} s")
            time.sleep(parameters.settle)
            died = time.monotonic()
            if case == WORKER:
                os.kill(before[1]["pid"], signal.SIGKILL)
            else:
                world = side.world(NODES - 1)
                send(side.processes(side.first()), signal.SIGKILL)
            known, round_before = {note["pid"] for note in before.values()}, before[0]["round"]
            after = until(lambda: _all_step(side.notes, died, world, known, round_before), died + _TIMEOUT)
            if after is None:
                return {"others": None, "seconds": None, "repeated": None, "stayed": None}
            newest = max(note["step"] for note in _notes(side.notes) if note["time"] <= died)
            others = _all_step(side.notes, died, NODES - 1, known, round_before) or after
            return {
                "others": round(min(_last(others), _last(after)) - died, 4),
                "seconds": round(_last(after) - died, 4),
                "repeated": max(0, newest + 1 - min(note["step"] for note in after.values())),
                "stayed": len({note["pid"] for note in after.values()} & {note["pid"] for note in before.values()}),
            }
        finally:
            side.stop()


def _last(steps: Mapping[int, Mapping[str, Any]]) -> float:
    """Return the time at which the last of the ranks has stepped."""
    return max(float(note["time"]) for note in steps.values())


def _all_step(
    notes: Path, since: float, world: int, known: Collection[int] = (), round_before: int = 0
) -> dict[int, dict[str, Any]] | None:
    """Return the first step of each rank of a world after ``since``; None if not all ranks have stepped.

    Steps count of processes that are not ``known``, or that are in a later round than ``round_before``.
    """
    found = [note for note in _notes(notes) if note["time"] > since and note["world"] == world]
    found = [note for note in found if note["pid"] not in known or note["round"] > round_before]
    first: dict[int, dict[str, Any]] = {}
    for note in sorted(found, key=lambda note: note["time"]):
        first.setdefault(note["rank"], note)
    return first if len(first) == world else None


def _notes(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in directory.glob("*.jsonl"):
        *complete, _ = path.read_text().split("\n")
        found += [json.loads(line) for line in complete]
    return found


def tables(results: Mapping[str, Any]) -> list[Table]:
    parameters, never = results["parameters"], f"*never*: not within {_TIMEOUT:g} s"
    what = (
        "Seconds from the fault until the ranks that were not lost, or those in their place, have stepped, and until "
        f"all ranks have stepped; median (least–greatest) of {parameters['repeat']}."
    )
    made = []
    for build in parameters["builds"]:
        chosen = [one for one in results["faults"] if one["build"] == build]
        builds = f"The script takes {build:g} s to build its model."
        missing = [f"{why}." for why in results.get("missing", ())]
        note = " ".join([what, f"{never}{attempts_note(parameters)}.", builds, *missing])
        made.append(_faults(f"The next step after a fault, {build:g} s to build the model", chosen, note))
    if examples := results.get("examples"):
        note = f"{what} The scripts are unchanged. They import torch and scikit-learn, and save every 20 steps."
        made.append(_faults("The next step of an example after a fault", examples, note))
    row = (spread(results["boundary"]), spread(results["numpy"]))
    note = (
        f"Microseconds; median (least–greatest) of {parameters['repeat']}. A model with three buffers, without the "
        "vote about a stop. A script that does not import numpy saves the second part."
    )
    return [*made, Table("The boundary of a step", ("boundary", "of which numpy's generator"), (row,), note)]


def _faults(title: str, faults: Sequence[Mapping[str, Any]], note: str) -> Table:
    """Return a table with a row for each case and side, compared with the first side."""
    first, rows = faults[0]["side"], []
    for case in dict.fromkeys(one["case"] for one in faults):
        sides = dict.fromkeys(one["side"] for one in faults if one["case"] == case)
        found = {side: [one for one in faults if (one["case"], one["side"]) == (case, side)] for side in sides}
        times = {side: [one["seconds"] for one in chosen] for side, chosen in found.items()}
        for side, chosen in found.items():
            others = spread([one["others"] for one in chosen])
            repeated = max(
                (str(one["repeated"]) for one in chosen if one["repeated"] is not None), key=int, default="-"
            )
            rows.append((case, side, others, spread(times[side]), ratio(times[first], times[side]), repeated))
    head = ("fault", "side", "others step", "all step", f"{first} / this side", "repeated steps, at most")
    return Table(title, head, tuple(rows), note)
