"""The time in which N nodes agree on a round: hpcelastic through files, torch's c10d rendezvous through one TCPStore.

Each node is a process without workers, forked from a process that has imported all modules. hpcelastic runs on this
machine's filesystem, without and with a delay of 2 ms for each operation on metadata (`distance`). The result is the
seconds from the common start until the last node has seen the round. Then one process of hpcelastic is killed: the
seconds from its death until the last other node has seen the next round.
"""

import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.distance import KINDS, Distance
from benchmarks.machine import CHECKOUT, processor_times
from benchmarks.notes import until
from benchmarks.processes import end_tree
from benchmarks.report import Table, ratio, significant, spread

GROUNDS = {"local": 0.0, "local + 2 ms": 0.002}
"""Filesystems, with the delay of each operation on metadata in seconds."""

TORCH = "torch c10d"

_TIMEOUT = 120.0
"""Seconds until all nodes must be ready to start."""

_CALM = 2.0
"""Seconds from the first round until a node is killed."""


@dataclass(frozen=True)
class Parameters:
    nodes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    repeat: int = 3
    timeout: float = 60.0
    """Seconds after which a round counts as failed. After a failure with N nodes, larger N are not measured."""

    grounds: tuple[str, ...] = tuple(GROUNDS)
    torch: bool = True


QUICK = Parameters(nodes=(4, 16, 64), repeat=1)


@dataclass(frozen=True)
class Formed:
    """The formation of a round."""

    seconds: float | None
    """None if no round formed before the time-out, or if an agent failed."""

    operations: dict[str, int] | None = None
    """Operations of all nodes together on the filesystem; None if they were not counted."""

    processor: float | None = None
    """Processor time in seconds of all nodes together, from the common start until each has seen the round."""

    error: str = ""
    after_loss: float | None = None
    """Seconds from the death of a node until the last other one has seen the next round. None if it was not measured,
    or if no round formed."""

    busy: float | None = None
    """Seconds for which processors of this machine were busy until the round had formed, all of them together. Some of
    the kernel's work is done outside of the nodes' processes."""

    loss_busy: float | None = None
    """The same from the death of a node."""


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Form rounds of every size with every rendezvous in turn, ``repeat`` times."""
    runs = []
    contenders = [*parameters.grounds, *([TORCH] if parameters.torch else [])]
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        for nodes in parameters.nodes:
            for _ in range(parameters.repeat):
                for name in list(contenders):
                    formed = on_side(name, nodes, parameters, Path(directory) / f"run-{len(runs)}")
                    say(f"{nodes} nodes, {name}: {spread([formed.seconds])} s {formed.error}")
                    runs.append({"nodes": nodes, "side": name, **asdict(formed)})
                    if formed.seconds is None:
                        contenders.remove(name)
    return {"parameters": asdict(parameters), "runs": runs}


def on_side(name: str, nodes: int, parameters: Parameters, directory: Path) -> Formed:
    """Form one round. The caller removes the directory after all rounds.

    For minutes after files were removed, ext4 needs much more processor time to create others.
    """
    if name == TORCH:
        with tcp_store() as server:
            return _form([TORCH, str(server.port), str(nodes)], nodes, parameters)
    return _form([name, str(directory), str(nodes)], nodes, parameters)


@dataclass(frozen=True)
class StoreServer:
    """A process that serves a TCPStore on this machine."""

    port: int
    pid: int


@contextlib.contextmanager
def tcp_store() -> Iterator[StoreServer]:
    """Serve a TCPStore in a separate process, like the host's agent in a real job."""
    code = (
        "import sys, torch.distributed as d\n"
        "store = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True); sys.stdin.read()"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        yield StoreServer(int(host.stdout.readline()), host.pid)
    finally:
        host.kill()
        host.communicate()


def _form(arguments: list[str], nodes: int, parameters: Parameters) -> Formed:
    """Start all nodes at the same time and wait for the last. Then kill one, and wait for the others."""
    with _node_processes([sys.executable, "-m", "benchmarks.scale", *arguments]) as (parent, lines):
        if until(lambda: True if len(lines) == nodes else None, time.monotonic() + _TIMEOUT) is None:
            return Formed(None, error=f"{nodes - len(lines)} nodes were not there after {_TIMEOUT:g} s")
        (before, _), since = processor_times(), time.monotonic()
        parent.stdin.close()
        until(lambda: True if len(lines) >= 2 * nodes else None, since + parameters.timeout)
        if len(lines) < 2 * nodes:
            return Formed(None)
        busy = processor_times()[0] - before
        answers = [json.loads(line) for line in lines[nodes : 2 * nodes]]
        lost = loss_busy = None
        if arguments[0] != TORCH and nodes > 1 and not any(answer["error"] for answer in answers):
            time.sleep(_CALM)
            (before, _), lost = processor_times(), time.monotonic()
            os.kill(answers[nodes // 2]["pid"], signal.SIGKILL)
            until(lambda: True if len(lines) == 3 * nodes - 1 else None, lost + parameters.timeout)
            loss_busy = processor_times()[0] - before
    errors = [answer["error"] for answer in answers if answer["error"]]
    if errors:
        return Formed(None, error=errors[0])
    counts: Counter[str] = sum((Counter(answer["counts"]) for answer in answers), Counter())
    processor = sum(answer["processor"] for answer in answers)
    seconds = round(max(answer["when"] for answer in answers) - since, 4)
    later = [json.loads(line)["when"] for line in lines[2 * nodes :]]
    if lost is None or len(later) < nodes - 1:
        return Formed(seconds, dict(counts) or None, processor, busy=busy)
    after_loss = round(max(later) - lost, 4)
    return Formed(seconds, dict(counts) or None, processor, after_loss=after_loss, busy=busy, loss_busy=loss_busy)


@contextlib.contextmanager
def _node_processes(command: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """Start the parent process of all nodes. Return it and the list of the lines that the nodes print."""
    parent = subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(parent.stdout,))
    reader.start()
    try:
        yield parent, lines
    finally:
        end_tree(parent.pid)
        parent.wait()
        reader.join()


# The nodes

AwaitRound: TypeAlias = Callable[[], None]
"""A function that waits for the next round."""

Join: TypeAlias = Callable[[], AwaitRound | None]
"""A function that joins a round. Its result is None if no further round is measured."""


def main(side: str, where: str, nodes: str) -> None:
    """Fork the nodes and wait until killed. Each node prints a line when it is ready and when it has joined."""
    make = (_torch if side == TORCH else _ours)(where, int(nodes))
    gc.freeze()
    for index in range(int(nodes)):
        if not os.fork():
            _node(make, index, None if side == TORCH else Distance(Path(where), GROUNDS[side]))
    threading.Event().wait()


def _node(make: Callable[[int], Join], index: int, distance: Distance | None) -> None:
    """Join the round once standard input ends, then stay: a node that leaves would disturb nodes that still join."""
    join = make(index)
    _say("there")
    sys.stdin.read()
    error, used, await_round = "", time.process_time(), None
    try:
        await_round = join()
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    counts = distance.counts() if distance else {}
    answer = {"when": time.monotonic(), "error": error, "counts": counts, "processor": time.process_time() - used}
    _say(json.dumps({**answer, "pid": os.getpid()}))
    if await_round is not None:
        await_round()
        _say(json.dumps({"when": time.monotonic()}))
    threading.Event().wait()


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one write: all nodes share the pipe


def _ours(directory: str, nodes: int) -> Callable[[int], Join]:
    from benchmarks import wiring
    from hpcelastic.storage.paths import RunPaths

    paths = RunPaths(Path(directory))
    wiring.warm_up()
    wiring.make_run(paths, nodes)

    def join(index: int) -> AwaitRound:
        await_round = wiring.join(paths, index, nodes)
        await_round()
        return await_round

    return lambda index: lambda: join(index)


def _torch(port: str, nodes: int) -> Callable[[int], Join]:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    def make(index: int) -> Join:
        store = TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)
        parameters = RendezvousParameters("c10d", f"127.0.0.1:{port}", "scale", nodes, nodes, local_addr="127.0.0.1")
        handler = create_handler(store, C10dRendezvousBackend(store, "scale"), parameters)

        def join() -> None:
            handler.next_rendezvous()

        return join

    return make


# Tables


def tables(results: Mapping[str, Any]) -> list[Table]:
    sides = list(dict.fromkeys(run["side"] for run in results["runs"]))
    sizes = sorted({run["nodes"] for run in results["runs"]})
    return [_times(results, sizes, sides), _operations(results, sizes, sides)]


def _times(results: Mapping[str, Any], sizes: list[int], sides: list[str]) -> Table:
    compared, ours = "local" in sides and TORCH in sides, [side for side in sides if side != TORCH]
    rows = []
    for nodes in sizes:
        times = {side: [run["seconds"] for run in _runs(results, nodes, side)] for side in sides}
        cells = [spread(times[side]) for side in sides]
        lost = [_after_loss(_runs(results, nodes, side)) for side in ours]
        rows.append((str(nodes), *cells, *([ratio(times["local"], times[TORCH])] if compared else []), *lost))
    parameters = results["parameters"]
    note = (
        f"Seconds; median (least–greatest) of {parameters['repeat']}; every node is a process of this machine. "
        f"*never*: not within {parameters['timeout']:g} s, so more nodes were not measured. *one dies*: from the "
        "death of a node until the last other one has the next round."
    )
    head = ("nodes", *sides, *(["ours (local) / torch"] if compared else []), *(f"{side}, one dies" for side in ours))
    return Table("A round of N nodes", head, tuple(rows), note)


def _after_loss(runs: list[Mapping[str, Any]]) -> str:
    measured = [run["after_loss"] for run in runs if run["seconds"] is not None and "after_loss" in run]
    return spread(measured) if measured else "-"


def _operations(results: Mapping[str, Any], sizes: list[int], sides: list[str]) -> Table:
    rows = []
    for nodes in sizes:
        for side in (side for side in sides if side != TORCH):
            runs = [run for run in _runs(results, nodes, side) if run["operations"]]
            counts, used = [run["operations"] for run in runs], [run.get("processor") for run in runs]
            milliseconds = significant(1000 * statistics.median(used) / nodes) if used and None not in used else "-"
            means = [sum(one.get(kind, 0) for one in counts) / len(counts) / nodes for kind in KINDS] if counts else []
            cells = map(significant, (sum(means), *means)) if means else ["-"] * (len(KINDS) + 1)
            rows.append((str(nodes), side, milliseconds, *cells))
    head = ("nodes", "filesystem", "CPU time in ms", "operations", *KINDS)
    note = (
        "Means over all nodes. The CPU time is that of the process, with its system calls. System calls on metadata "
        "are counted, also those that a client answers from its cache."
    )
    return Table("CPU time of each node, and its operations on the filesystem, until then", head, tuple(rows), note)


def _runs(results: Mapping[str, Any], nodes: int, side: str) -> list[Mapping[str, Any]]:
    return [run for run in results["runs"] if (run["nodes"], run["side"]) == (nodes, side)]


if __name__ == "__main__":
    main(*sys.argv[1:])
