"""The time of `hpcelastic why` and `hpcelastic goodput` for runs of many nodes and rounds, as whole commands.

The run directories are written by this program: each round ends by the failure of a worker, which has left a log of
1 MiB. Every node has been in every round.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Table, significant
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.events import (
    AgentStarted,
    ClockMeasured,
    Decided,
    Event,
    StateChanged,
    TrainingTotals,
    WorkerEnded,
    WorkersParked,
    WorkersStarted,
    to_fields,
)
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Cause, Participant, Phase, State
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register

_COMMANDS = ("why", "goodput")
_ROUND, _BEGIN, _BOOT = 60.0, 1.7e9, 5000.0
"""Seconds of a round; the beginning of the run, in seconds since the epoch and since the nodes' start."""

_LOG = 1 << 20
"""Bytes of the log of a failed worker."""


@dataclass(frozen=True)
class Parameters:
    nodes: tuple[int, ...] = (64, 1024)
    rounds: int = 100
    repeat: int = 20
    """Repetitions of `why`. The account of all rounds takes longer, and has three."""


QUICK = Parameters(nodes=(8,), rounds=10, repeat=2)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    runs = []
    for nodes in parameters.nodes:
        with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
            paths = RunPaths(Path(directory) / "large")
            size = write_run(paths, nodes, parameters.rounds)
            for command in _COMMANDS:
                repeat = parameters.repeat if command == "why" else min(3, parameters.repeat)
                seconds = [_seconds(command, paths.root) for _ in range(repeat)]
                runs.append({"nodes": nodes, "command": command, "bytes": size, "seconds": seconds})
                say(f"{command}, {nodes} nodes: {seconds}")
    return {"parameters": asdict(parameters), "runs": runs}


def _seconds(command: str, run: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hpcelastic", command, str(run)], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"hpcelastic {command} ended with {done.returncode}: {done.stderr}")
    return round(seconds, 3)


def write_run(paths: RunPaths, nodes: int, rounds: int) -> int:
    """Write the directory of a run that has failed in its last round. Return the bytes of its event logs."""
    for directory in (paths.register, paths.leases, paths.events):
        directory.mkdir(parents=True)
    backend, settings = FileBackend(paths), Settings(NodeRange(nodes, nodes))
    open_run(backend, "large", settings, "n0@0-a")
    members = tuple(Participant(f"n{i}@0-a", 1, "h", 1) for i in range(nodes))
    failed = State("large", settings, Phase.FAILED, rounds, members, reason="a worker failed")
    Register(paths.register, "n0@0-a").commit(1, encode(failed))
    size = 0
    for node in range(nodes):
        data = b"".join(_lines(node, nodes, rounds))
        paths.event_log(f"n{node}@0-a").write_bytes(data)
        size += len(data)
    log = paths.log(rounds, rounds % nodes, "err")
    log.parent.mkdir(parents=True)
    end = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: bad label\n'
    log.write_text("a line of the worker\n" * (_LOG // 21) + end)
    return size


def _lines(node: int, nodes: int, rounds: int) -> list[bytes]:
    """Return the lines of the log of one node."""
    name, found = f"n{node}", list[bytes]()

    def add(time: float, event: Event) -> None:
        times = {"time": _BEGIN + time, "up": _BOOT + time}
        found.append(files.to_json({**times, "node": name, "event": event.kind, **to_fields(event)}))

    add(0.0, AgentStarted(address="h", pid=7, workers=1, machine=name, job="7.0", job_nodes=nodes))
    add(0.0, ClockMeasured(least=_BEGIN - _BOOT - 0.001, most=_BEGIN - _BOOT + 0.001))
    for round in range(1, rounds + 1):
        begin = (round - 1) * _ROUND
        end, culprit = begin + _ROUND - 1, round % nodes
        _add_beginning(add, begin, round, node, nodes)
        if node == culprit:
            add(end - 0.2, WorkerEnded(round=round, rank=node, exit_code=1))
        reason = f"rank {culprit} failed on n{culprit}: ValueError: bad label (exit status 1)"
        phase, version = Phase.FAILED if round == rounds else Phase.JOINING, 2 * round + 1
        add(
            end,
            StateChanged(version=version, phase=phase, round=round, restarts=0, reason=reason, cause=Cause.WORKER),
        )
        add(
            end + 0.1,
            TrainingTotals(
                round=round,
                rank=node,
                steps=500,
                before=499 * (round - 1),
                restored=_BOOT + begin + 1,
                first_step=_BOOT + begin + 1,
                last_step=_BOOT + end - 0.3,
                samples=(0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 25.5),
            ),
        )
        add(end + 0.1, WorkersParked(round=round, reason=reason, ranks=(node,), seconds=0.1))
    return found


def _add_beginning(add: Callable[[float, Event], None], begin: float, round: int, node: int, nodes: int) -> None:
    reason = f"round {round} formed on {nodes} nodes"
    if node == 0:
        members = tuple(f"n{i}" for i in range(nodes))
        add(begin, Decided(version=2 * round, phase=Phase.RUNNING, round=round, reason=reason, members=members))
    add(begin, StateChanged(version=2 * round, phase=Phase.RUNNING, round=round, restarts=0, reason=reason))
    add(
        begin,
        WorkersStarted(
            round=round,
            world_size=nodes,
            group_rank=node,
            group_world_size=nodes,
            role_rank=node,
            role_world_size=nodes,
            pids={node: 7},
            cpus="0-63",
            master_addr="10.0.0.1",
            master_port=29500,
        ),
    )


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows = []
    for run in results["runs"]:
        ordered = sorted(run["seconds"])
        middle, late = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
        logs = f"{run['bytes'] / (1 << 20):.0f} MiB"
        rows.append((f"{run['nodes']}", run["command"], logs, significant(middle), significant(late)))
    rounds = results["parameters"]["rounds"]
    note = (
        f"Seconds of the whole command for a run of {rounds} rounds, with the start of Python. `why` explains the last "
        "fault, whose worker has a log of 1 MiB, and `goodput` accounts for all rounds."
    )
    return [Table("Explanation of a run", ("nodes", "command", "event logs", "median", "95 %"), tuple(rows), note)]
