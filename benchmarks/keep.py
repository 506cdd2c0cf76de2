"""What checkpoints and snapshots cost: how long a save stops the training, how much slower steps are, how long a load
takes, and what the loss of a node costs a sharded training.

For saves and loads one agent runs on one node, with one worker, which measures itself. The other side of each ratio is
measured in turn with ours in the same process: a copy to memory that exists, torch.save with fsync, torch.load, and
steps without saves. A state of a lost node is loaded by a worker of another one, and the same number of bytes is sent
through one TCP connection of this machine.
"""

import json
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import fetches, resume
from benchmarks.notes import until
from benchmarks.processes import send
from benchmarks.report import Table, ratio, spread
from benchmarks.saves import SAVE_EVERY, STEP, STEP_STATE
from benchmarks.sides import Ours, Workload

SCRIPT, FETCHES = Path(__file__).with_name("saves.py"), Path(__file__).with_name("fetches.py")
_SAVES_TIMEOUT, _TIMEOUT = 1800.0, 300.0
_NODES = 3


@dataclass(frozen=True)
class Parameters:
    mib: int = 1024
    """Size of the state that is saved and loaded, in MiB."""

    steps: int = 100
    """Number of training steps with saves, and without, in each repetition."""

    repeat: int = 5
    settle: float = 4.0
    """Seconds between the first step of a sharded training and the loss of a node."""


QUICK = Parameters(mib=256, steps=20, repeat=3, settle=2.0)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of saves, loads and steps, and what a lost node costs a sharded training."""
    seconds = _saves(parameters)
    seconds |= {"network": [], "fetch": []}
    for _ in range(parameters.repeat):
        seconds["network"].append(_through_network(parameters.mib))
        seconds["fetch"].append(_fetch(parameters.mib))
    for name, values in seconds.items():
        say(f"{name}: {spread(values)} s")
    lost = []
    for _ in range(parameters.repeat):
        lost.append(resume.fault(resume.SHARDED, resume.NODE, 0.0, resume.Parameters(settle=parameters.settle)))
        say(f"a node of a sharded training is lost: {lost[-1]}")
    return {"parameters": asdict(parameters), "seconds": seconds, "lost": lost}


def _saves(parameters: Parameters) -> dict[str, list[float]]:
    """Run the worker that measures itself, and return its seconds."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        arguments = (str(parameters.mib), str(parameters.repeat), str(parameters.steps))
        side = Ours(Workload(Path(directory), SCRIPT, "1..1", script_args=arguments))
        side.start(0)
        try:
            found: dict[str, list[float]] = json.loads(_await_note(side.notes / "results.json", _SAVES_TIMEOUT))
            return found
        finally:
            side.stop()


def _fetch(mib: int) -> float:
    """Kill the node that has taken a snapshot. Return the seconds in which the others load it."""
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        settings = {"rendezvous": {"last_call": 2.0}, "network": {"snapshot_rate": 0}}
        arguments = (str(mib),)
        side = Ours(Workload(Path(directory), FETCHES, f"2..{_NODES}", script_args=arguments, settings=settings))
        side.start_all(_NODES)
        try:
            _await_note(side.notes / fetches.KEPT)
            send(side.processes(side.first()), signal.SIGKILL)
            return float(_await_note(side.notes / fetches.LOADED))
        finally:
            side.stop()


def _await_note(path: Path, timeout: float = _TIMEOUT) -> str:
    found = until(lambda: path.read_text() if path.exists() else None, time.monotonic() + timeout)
    if found is None:
        raise RuntimeError(f"the worker has not written {path.name} within {timeout:g} s")
    return found


def _through_network(mib: int) -> float:
    """Return the seconds in which one TCP connection of this machine carries ``mib`` MiB to memory that exists."""
    target = memoryview(bytearray(mib << 20))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(mib << 20),))
            began = time.perf_counter()
            thread.start()
            read = 0
            while read < len(target):
                read += receiver.recv_into(target[read:])
            seconds = time.perf_counter() - began
            thread.join()
    return seconds


def tables(results: Mapping[str, Any]) -> list[Table]:
    seconds, parameters = results["seconds"], results["parameters"]
    size = f"{parameters['mib'] / 1024:g} GiB"
    saves = (
        ("save(wait=False) stops the training for", "background", "one copy to memory", "copy"),
        ("load() from memory, which checks all bytes", "memory", "one copy to memory", "copy"),
        ("load(like=...) from memory, which checks all bytes", "in place", "one copy to memory", "copy"),
        ("save()", "wait", "torch.save and fsync", "torch.save"),
        ("load() from disk, which checks all bytes", "load", "torch.load", "torch.load"),
        ("load(like=...) from the memory of another node", "fetch", "these bytes through TCP", "network"),
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
    saves_and_loads = Table("Saves and loads", ("", "seconds", "compared with", "seconds", "ratio"), tuple(rows), note)
    return [saves_and_loads, _lost_node(results["lost"])]


def _lost_node(lost: list[dict[str, Any]]) -> Table:
    repeated = [str(one["repeated"]) for one in lost if one["repeated"] is not None]
    row = (spread([one["seconds"] for one in lost]), ", ".join(repeated) or "-")
    note = (
        f"Seconds from the death of one of {_NODES} nodes until all ranks of the others have executed a step; median "
        f"(least–greatest) of {len(lost)}. The model is small and divided with FSDP2. A snapshot is due in each step, "
        "and a step takes about 20 ms."
    )
    head = ("all step", "repeated steps in each repetition")
    return Table("A node of a sharded training is lost", head, (row,), note)
