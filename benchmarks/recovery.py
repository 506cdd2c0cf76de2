"""How long a fault stops training: hpcelastic beside torchrun, three agents with one worker each, in one run.

Seconds from the fault (or the start) until every survivor has done a step in the new world. Both sides run the same
script with gloo on this machine, in turn, `--repeat` times; medians and ratios are printed.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare

SCRIPT = Path(__file__).with_name("steps.py")
NODES = 3


class Side(Protocol):
    """One of the two that are compared."""

    def start(self) -> None: ...
    def kill_node(self, index: int) -> None: ...
    def stop(self) -> None: ...


class Ours:
    """hpcelastic with its default timings but for those given."""

    def __init__(self, notes: Path) -> None:
        job = {
            "run": {"name": "bench", "directory": str(notes.parent)},
            "entrypoint": {"script": str(SCRIPT), "args": [str(notes)]},
            "nodes": f"2..{NODES}",
            "workers": {"per_node": 1, "stop_grace": 2},
            "rendezvous": {"lease": 4, "margin": 1, "poll": 0.2},
        }
        self._nodes = LocalNodes(prepare(resolve(job, [])), NODES)

    def start(self) -> None:
        self._nodes.start()

    def kill_node(self, index: int) -> None:
        self._nodes.kill_node(index)

    def stop(self) -> None:
        for index in range(NODES):
            self._nodes.kill_node(index)


class Torchrun:
    """torchrun with its c10d rendezvous, hosted by node 0."""

    def __init__(self, notes: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            f"2:{NODES}",
            "--nproc-per-node",
            "1",
        ]
        self._command += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
        self._command += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1", str(SCRIPT), str(notes)]
        self._agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._agents = [subprocess.Popen(self._command, start_new_session=True, **quiet) for _ in range(NODES)]

    def kill_node(self, index: int) -> None:
        for pid in [*descendants(self._agents[index].pid), self._agents[index].pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._agents[index].wait()

    def stop(self) -> None:
        for index in range(NODES):
            self.kill_node(index)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, the deepest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in children for found in (*descendants(int(child)), int(child))]


def steps(notes: Path) -> list[dict[str, float]]:
    """The last step of every worker so far."""
    last = []
    for path in notes.glob("*.jsonl"):
        lines = path.read_text().splitlines()
        if lines:
            try:
                last.append(json.loads(lines[-1]))
            except ValueError:
                last.append(json.loads(lines[-2]))
    return last


def first_steps(notes: Path, world: int, since: float, timeout: float) -> float | None:
    """Seconds from ``since`` until ``world`` workers that are new since then have stepped; None after ``timeout``."""
    while time.monotonic() < since + timeout:
        firsts = [json.loads(line) for path in notes.glob("*.jsonl") if (line := path.open().readline()).endswith("\n")]
        fresh = [note["time"] for note in firsts if note["time"] > since and note["world"] == world]
        if len(fresh) >= world:
            return float(max(fresh) - since)
        time.sleep(0.02)
    return None


def cold_start(side: Side, notes: Path, timeout: float) -> float | None:
    since = time.monotonic()
    side.start()
    return first_steps(notes, NODES, since, timeout)


def kill_worker(side: Side, notes: Path, timeout: float) -> float | None:
    if cold_start(side, notes, timeout) is None:
        return None
    time.sleep(2)
    since = time.monotonic()
    os.kill(int(steps(notes)[0]["pid"]), signal.SIGKILL)
    return first_steps(notes, NODES, since, timeout)


def kill_node(index: int) -> Callable[[Side, Path, float], float | None]:
    def scenario(side: Side, notes: Path, timeout: float) -> float | None:
        if cold_start(side, notes, timeout) is None:
            return None
        time.sleep(2)
        since = time.monotonic()
        side.kill_node(index)
        return first_steps(notes, NODES - 1, since, timeout)

    return scenario


SCENARIOS = {
    "cold start": cold_start,
    "SIGKILL of a worker": kill_worker,
    "SIGKILL of a node": kill_node(2),
    "SIGKILL of the first node": kill_node(0),
}


def measure(scenario: Callable[[Side, Path, float], float | None], make: type, timeout: float) -> float | None:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        notes = Path(directory) / "notes"
        notes.mkdir()
        side: Side = make(notes)
        try:
            return scenario(side, notes, timeout)
        finally:
            side.stop()


def shown(times: list[float | None]) -> tuple[str, float | None]:
    """The median, or how often there was no recovery."""
    good = [t for t in times if t is not None]
    if len(good) < len(times):
        return f"{len(times) - len(good)} of {len(times)} never", None
    return f"{statistics.median(good):.2f}", statistics.median(good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each scenario on each side")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds after which a side counts as not recovered"
    )
    args = parser.parse_args()
    print(f"{'':28} {'hpcelastic':>14} {'torchrun':>14} {'ratio':>7}   (seconds, median of {args.repeat})")
    for name, scenario in SCENARIOS.items():
        pairs = [
            (measure(scenario, Ours, args.timeout), measure(scenario, Torchrun, args.timeout))
            for _ in range(args.repeat)
        ]
        (ours, a), (theirs, b) = shown([p[0] for p in pairs]), shown([p[1] for p in pairs])
        ratio = f"{a / b:.2f}" if a is not None and b is not None else "-"
        print(f"{name:28} {ours:>14} {theirs:>14} {ratio:>7}", flush=True)


if __name__ == "__main__":
    main()
