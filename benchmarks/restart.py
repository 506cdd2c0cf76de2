"""The restart of a worker whose script imports much: from its death to the first line after the imports.

One agent runs on one node, with one worker, which imports torch and scikit-learn and sleeps. It is killed some seconds
after its start. By default hpcelastic has learned its imports by then.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.notes import sleepers, until
from benchmarks.report import Table, ratio, spread
from benchmarks.sides import NO_PRELOAD, Ours, Torchrun, Workload

SCRIPT = Path(__file__).with_name("sleeps.py")
MODULES = ("torch", "sklearn.datasets", "sklearn.linear_model")
"""The imports of the script."""

_TIMEOUT = 60.0
_KILLS = 3
"""Deaths of a worker in each run: the restart budget of each launcher."""

_UNLEARNED: Mapping[str, Any] = {"workers": {"learn_imports": False}}


@dataclass(frozen=True)
class Parameters:
    repeat: int = 5
    settle: float = 8.0
    """Seconds between the start of a worker and its death."""

    sides: tuple[str, ...] = ()
    """Names of launchers; all if empty."""


QUICK = Parameters(repeat=1, settle=5.0)

_SIDES: Mapping[str, tuple[Callable[[Workload], Any], Mapping[str, Any] | None]] = {
    "hpcelastic": (Ours, None),
    "torchrun": (Torchrun, None),
    "hpcelastic, only torch preloaded": (Ours, _UNLEARNED),
    "hpcelastic, nothing preloaded": (Ours, NO_PRELOAD),
}
"""Each launcher, with settings of hpcelastic that are not the default."""


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all launchers in turn."""
    restarts = []
    for _ in range(parameters.repeat):
        for name in parameters.sides or _SIDES:
            found = _restarts(name, parameters.settle)
            restarts += [{"side": name, "seconds": seconds} for seconds in found]
            say(f"{name}: restarted after {spread(found)} s")
    return {"parameters": asdict(parameters), "restarts": restarts}


def _restarts(name: str, settle: float) -> list[float]:
    """Return the seconds from each death of the worker to the first line of the next one after its imports."""
    found = []
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        make, settings = _SIDES[name]
        side = make(Workload(Path(directory), SCRIPT, "1..1", script_args=MODULES, settings=settings))
        side.start(0)
        try:
            pid, _ = _next_worker(side.notes, set())
            seen = {pid}
            for _ in range(_KILLS):
                time.sleep(settle)
                died = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                pid, up = _next_worker(side.notes, seen)
                seen.add(pid)
                found.append(round(up - died, 4))
        finally:
            side.stop()
    return found


def _next_worker(notes: Path, seen: set[int]) -> tuple[int, float]:
    def poll() -> tuple[int, float] | None:
        return next(((pid, up) for pid, up in sleepers(notes).items() if pid not in seen), None)

    worker = until(poll, time.monotonic() + _TIMEOUT)
    if worker is None:
        raise RuntimeError(f"no worker has started within {_TIMEOUT:g} s")
    return worker


def tables(results: Mapping[str, Any]) -> list[Table]:
    sides = list(dict.fromkeys(restart["side"] for restart in results["restarts"]))
    times = {side: [one["seconds"] for one in results["restarts"] if one["side"] == side] for side in sides}
    rows = tuple((side, spread(found), ratio(times.get("hpcelastic", []), found)) for side, found in times.items())
    note = (
        "Seconds from the SIGKILL of the worker to the script's first line after its imports, torch and scikit-learn; "
        f"median (least–greatest) of {results['parameters']['repeat'] * _KILLS} restarts."
    )
    return [Table("Restart of a script with imports", ("side", "seconds", "hpcelastic / this side"), rows, note)]
