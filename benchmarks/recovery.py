"""The time for which a fault stops training: hpcelastic, torchrun, NVIDIA's ft_launcher and torchft, with three nodes.

Each node has an agent with one worker. The result is the seconds from the fault, or from a start, until every worker of
the new world has executed a step. All launchers run the same script with gloo on this machine, in turn. torchft needs a
script with its own classes, which trains a small model.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.notes import Step, first_steps, new_world
from benchmarks.phases import MEANING, PHASES, lengths
from benchmarks.processes import send
from benchmarks.report import Table, attempts_note, is_hopeless, median, ratio, significant, spread
from benchmarks.sides import TORCHFT, TorchFt, Workload, sides, why_not
from hpcelastic.protocol.events import LoggedEvent

SCRIPT, TORCHFT_SCRIPT = (Path(__file__).with_name(name) for name in ("steps.py", "trains.py"))
NODES = 3

_SETTLE, _LONG_SETTLE = 2.0, 30.0
"""Seconds of training before the fault. In the second time the agents of hpcelastic have measured their filesystem, and
have chosen the duration of their leases."""


@dataclass(frozen=True)
class Parameters:
    repeat: int = 3
    timeout: float = 60.0
    """Seconds after which the recovery counts as failed."""

    attempts: int = 2
    """Repetitions of a scenario with a launcher if training does not continue in any of them."""

    scenarios: tuple[str, ...] = ()
    """All if empty."""

    sides: tuple[str, ...] = ()
    """All available ones if empty."""


QUICK = Parameters(repeat=1, timeout=45.0)


@dataclass(frozen=True)
class Fault:
    """The time of a fault, and the size of the world that must train afterwards."""

    since: float
    world: int
    before: tuple[Step, ...] = ()
    """The steps of the workers before the fault."""


@dataclass(frozen=True)
class Scenario:
    """A fault, and the settings of the launchers."""

    act: Callable[[Any, Path], Fault | None]
    """Causes the fault. Returns None if the launcher does not do what the scenario measures."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of hpcelastic that are not the default."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of torchrun's and ft_launcher's agents."""


def _cold_start(side: Any, notes: Path) -> Fault:
    since = time.monotonic()
    side.start_all(NODES)
    return Fault(since, side.world(NODES))


class NotStarted(RuntimeError):
    """The training has not begun, so there is nothing to measure."""


def _start_training(side: Any, notes: Path, nodes: int = NODES, settle: float = _SETTLE) -> tuple[Step, ...]:
    """Start all nodes, wait until they have trained for ``settle`` seconds, and return the first steps."""
    since = time.monotonic()
    side.start_all(nodes)
    steps = new_world(notes, side.world(nodes), since, 120.0)
    if steps is None:
        raise NotStarted("training did not start within 120 s")
    time.sleep(settle)
    return tuple(steps)


def _kill_worker(side: Any, notes: Path) -> Fault:
    steps = _start_training(side, notes)
    last = max(steps, key=lambda step: step.rank)
    since = time.monotonic()
    send([last.pid], signal.SIGKILL)
    return Fault(since, side.world(NODES), steps)


def _signal_node(signum: int, first: bool, settle: float = _SETTLE) -> Callable[[Any, Path], Fault]:
    """Return a fault that signals every process of a node: the host of torch's rendezvous, or the last other node.

    The last node is one that trains, and not a spare.
    """

    def act(side: Any, notes: Path) -> Fault:
        steps = _start_training(side, notes, settle=settle)
        host, pids = side.first(), {step.pid for step in steps}
        trains = [index for index in range(NODES) if index != host and pids & {*side.processes(index)}]
        everyone = side.processes(host if first else max(trains))
        since = time.monotonic()
        send(everyone, signum)
        return Fault(since, side.world(NODES - 1), steps)

    return act


def _join(side: Any, notes: Path) -> Fault | None:
    if side.world(NODES) < NODES:
        return None
    steps = _start_training(side, notes, NODES - 1)
    since = time.monotonic()
    side.start(NODES - 1)
    return Fault(since, NODES, steps)


SCENARIOS = {
    "cold start": Scenario(_cold_start),
    "SIGKILL of a worker": Scenario(_kill_worker),
    "SIGKILL of the last node": Scenario(_signal_node(signal.SIGKILL, first=False)),
    "SIGKILL of the first node": Scenario(_signal_node(signal.SIGKILL, first=True)),
    "silent node (SIGSTOP)": Scenario(_signal_node(signal.SIGSTOP, first=False, settle=_LONG_SETTLE)),
    "a node joins": Scenario(_join),
    "a node joins, torch's store not shared": Scenario(_join, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Run every scenario with every launcher in turn, ``repeat`` times."""
    racing, left_out = sides(parameters.sides)
    if not parameters.sides or "torchft" in parameters.sides:
        missing = why_not(TORCHFT)
        if missing:
            left_out.append(missing)
        else:
            racing["torchft"] = TorchFt
    for reason in left_out:
        say(reason)
    chosen = {name: one for name, one in SCENARIOS.items() if not parameters.scenarios or name in parameters.scenarios}
    runs: list[dict[str, Any]] = []
    for name, scenario in chosen.items():
        for _ in range(parameters.repeat):
            for side, make in racing.items():
                if is_hopeless(seconds({"runs": runs}, name, side), parameters.attempts):
                    continue
                try:
                    found = _measured(scenario, make, parameters.timeout)
                except NotStarted as error:  # one of a hundred starts must not spoil all results
                    say(f"{name}: {side}: {error}; left out")
                    continue
                if found is None:
                    continue
                run = {"scenario": name, "side": side, **found}
                say(f"{name}: {side}: {spread([run['seconds']])} s")
                runs.append(run)
    settings = {name: scenario.settings for name, scenario in chosen.items() if scenario.settings}
    return {"parameters": asdict(parameters), "settings": settings, "left_out": left_out, "runs": runs}


def _measured(scenario: Scenario, make: type, timeout: float) -> dict[str, Any] | None:
    """Return the seconds until all workers of the new world have executed a step, and the phases if they are known.

    The seconds are None after ``timeout``. The result is None if the launcher does not do what is measured.
    """
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        script, arguments = (TORCHFT_SCRIPT, ("torchft",)) if make is TorchFt else (SCRIPT, ())
        own = {"settings": scenario.settings, "environment": scenario.environment}
        workload = Workload(Path(directory), script, f"2..{NODES}", script_args=arguments, **own)
        side = make(workload)
        try:
            fault = scenario.act(side, workload.notes)
            if fault is None:
                return None
            steps = new_world(workload.notes, fault.world, fault.since, timeout, fault.before)
            if steps is None:
                return {"seconds": None, "phases": None, "seen": [asdict(s) for s in first_steps(workload.notes)]}
            return _timed(fault, steps, side.events())
        finally:
            side.stop()


def _timed(fault: Fault, steps: list[Step], events: list[LoggedEvent]) -> dict[str, Any]:
    ahead = time.time() - time.monotonic()
    shifted = [replace(event, time=event.time - ahead) for event in events]
    until = max(step.time for step in steps)
    phases = lengths(fault.since, until, [step.up for step in steps], shifted)
    return {"seconds": round(until - fault.since, 4), "phases": phases}


def tables(results: Mapping[str, Any]) -> list[Table]:
    names = list(dict.fromkeys(run["side"] for run in results["runs"]))
    scenarios = list(dict.fromkeys(run["scenario"] for run in results["runs"]))
    return [_race(results, scenarios, names), _phases(results, scenarios)]


def _race(results: Mapping[str, Any], scenarios: list[str], names: list[str]) -> Table:
    peers = [name for name in names if name != "hpcelastic"]
    rows = []
    for scenario in scenarios:
        times = {name: seconds(results, scenario, name) for name in names}
        ratios = [ratio(times.get("hpcelastic", []), times[peer]) for peer in peers]
        rows.append((scenario, *(spread(times[name]) for name in names), *ratios))
    parameters, own = results["parameters"], results["settings"]
    changed = "; ".join(f"{name}: {_flat(settings)}" for name, settings in own.items())
    note = (
        f"Seconds; median (least–greatest) of {parameters['repeat']}. *never*: not within {parameters['timeout']:g} s"
        f"{attempts_note(parameters)}. -: the launcher does not do this; with ft_launcher, the least number of nodes "
        "trains, here two, and the third is a spare. "
        "Ratio: hpcelastic / the other launcher. All launchers have their default settings"
        f"{', except hpcelastic in these scenarios: ' + changed if changed else ''}."
    )
    head = ("scenario", *names, *(f"ours / {peer}" for peer in peers))
    return Table("Race", head, tuple(rows), " ".join([note, *(f"{reason}." for reason in results["left_out"])]))


def _phases(results: Mapping[str, Any], scenarios: list[str]) -> Table:
    rows = []
    for scenario in scenarios:
        found = phases(results, scenario)
        rows.append((scenario, *(significant(found[name]) if name in found else "-" for name in PHASES)))
    note = " ".join(MEANING.split()) + " Each value is the median of the phase."
    return Table("Phases of hpcelastic", ("scenario", *PHASES), tuple(rows), note)


def seconds(results: Mapping[str, Any], scenario: str, side: str) -> list[float | None]:
    return [run["seconds"] for run in results["runs"] if (run["scenario"], run["side"]) == (scenario, side)]


def phases(results: Mapping[str, Any], scenario: str) -> dict[str, float]:
    """Return the median of each phase of hpcelastic; empty if no phases are known."""
    runs = [run for run in results["runs"] if (run["scenario"], run["side"]) == (scenario, "hpcelastic")]
    known = [run["phases"] for run in runs if run["phases"]]
    medians = {name: median(one[name] for one in known) for name in PHASES}
    return {name: value for name, value in medians.items() if value is not None}


def _flat(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{part}.{key} = {value:g}" for part, keys in settings.items() for key, value in keys.items())
