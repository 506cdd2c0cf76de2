"""How long N nodes take to agree on a round: hpcelastic through files, torch's c10d rendezvous through one TCPStore.

Nodes are threads, spread over the same few processes on both sides, without workers; a round needs all of them. Ours
runs on this machine's filesystem, and there with 2 ms more for each operation on metadata (`distance`). Seconds from
the start of the first node until the last has seen the round.
"""

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.distance import KINDS, Distance
from benchmarks.machine import CHECKOUT
from benchmarks.notes import until
from benchmarks.processes import end_tree
from benchmarks.report import Table, ratio, significant, spread

GROUNDS = {"local": 0.0, "local + 2 ms": 0.002}
"""Seconds that each operation on metadata takes longer."""

TORCH = "torch c10d"


@dataclass(frozen=True)
class Parameters:
    nodes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    processes: int = 8
    repeat: int = 3
    timeout: float = 60.0
    """Seconds after which a round counts as never formed; a side that has failed at N is not tried with more."""

    grounds: tuple[str, ...] = tuple(GROUNDS)
    torch: bool = True


QUICK = Parameters(nodes=(4, 16, 64), processes=4, repeat=1)


@dataclass(frozen=True)
class Formed:
    """How a round formed."""

    seconds: float | None
    """None: not before the time-out, or an agent gave up."""

    operations: dict[str, int] | None = None
    """What the filesystem was asked for by all nodes together; None if it was not asked."""

    error: str = ""


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Form rounds of every size on every side, ``repeat`` times, in turn."""
    runs = []
    contenders = [*parameters.grounds, *([TORCH] if parameters.torch else [])]
    for nodes in parameters.nodes:
        for _ in range(parameters.repeat):
            for name in list(contenders):
                formed = _on(name, nodes, parameters)
                say(f"{nodes} nodes, {name}: {spread([formed.seconds])} s {formed.error}")
                runs.append({"nodes": nodes, "side": name, **asdict(formed)})
                if formed.seconds is None:
                    contenders.remove(name)
    return {"parameters": asdict(parameters), "runs": runs}


def _on(name: str, nodes: int, parameters: Parameters) -> Formed:
    if name == TORCH:
        with tcp_store() as port:
            return _form([TORCH, str(port), str(nodes)], nodes, parameters)
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        return _form([name, str(Path(directory) / "run"), str(nodes)], nodes, parameters)


@contextlib.contextmanager
def tcp_store() -> Iterator[int]:
    """A TCPStore in a process of its own, as its host's agent is in a real job; the port at which it listens."""
    code = (
        "import sys, torch.distributed as d\n"
        "store = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True); sys.stdin.read()"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        yield int(host.stdout.readline())
    finally:
        host.kill()
        host.communicate()


def _form(arguments: list[str], nodes: int, parameters: Parameters) -> Formed:
    """Let processes with a share of the nodes each go at the same moment, and wait for the last node."""
    count = min(parameters.processes, nodes)
    shares = [f"{nodes * place // count}..{nodes * (place + 1) // count}" for place in range(count)]
    command = [sys.executable, "-m", "benchmarks.scale", *arguments]
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(_process([*command, share])) for share in shares]
        if any(process.stdout.readline() != "ready\n" for process in crowd):
            return Formed(None, error="a process with nodes did not start")
        since = time.monotonic()
        for process in crowd:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = _answers(crowd, since + parameters.timeout)
    if len(answers) < count:
        return Formed(None)
    errors = [answer["error"] for answer in answers if answer["error"]]
    if errors:
        return Formed(None, error=errors[0])
    counts: Counter[str] = sum((Counter(answer["counts"]) for answer in answers), Counter())
    return Formed(round(max(answer["last"] for answer in answers) - since, 4), dict(counts) or None)


def _answers(crowd: list[Any], deadline: float) -> list[dict[str, Any]]:
    """What the processes say in time."""
    found: list[dict[str, Any]] = []
    listeners = [
        threading.Thread(target=lambda p=process: found.extend(map(json.loads, p.stdout)), daemon=True)
        for process in crowd
    ]
    for listener in listeners:
        listener.start()
    until(lambda: True if len(found) == len(crowd) else None, deadline)
    return list(found)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[Any]:
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        end_tree(process.pid)
        process.wait()


# In a process with a share of the nodes


class _Roll:
    """Which nodes have joined, and when the last did."""

    def __init__(self, share: range) -> None:
        self._missing = set(share)
        self._lock = threading.Lock()
        self.complete = threading.Event()
        self.last = 0.0
        self.error = ""

    def joined(self, index: int, error: Exception | None) -> None:
        with self._lock:
            if index in self._missing:
                self._missing.discard(index)
                self.last = time.monotonic()
                self.error = self.error or (f"{type(error).__name__}: {error}" if error else "")
                if error is not None or not self._missing:
                    self.complete.set()


def _ours(directory: str, nodes: int, share: range, roll: _Roll) -> Callable[[], None]:
    from benchmarks import wiring
    from hpcelastic.store.paths import RunPaths

    paths = RunPaths(Path(directory))

    def enter(index: int) -> None:
        try:
            wiring.make_run(paths)
            wiring.join(paths, index, nodes, lambda error: roll.joined(index, error))
        except Exception as error:
            roll.joined(index, error)

    return lambda: _at_once(enter, share)


def _torch(port: str, nodes: int, share: range, roll: _Roll) -> Callable[[], None]:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    handlers = {}
    for index in share:
        store = TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)
        parameters = RendezvousParameters("c10d", f"127.0.0.1:{port}", "scale", nodes, nodes, local_addr="127.0.0.1")
        handlers[index] = create_handler(store, C10dRendezvousBackend(store, "scale"), parameters)

    def enter(index: int) -> None:
        try:
            handlers[index].next_rendezvous()
            roll.joined(index, None)
        except Exception as error:
            roll.joined(index, error)

    return lambda: _at_once(enter, share)


def _at_once(enter: Callable[[int], None], share: range) -> None:
    for index in share:
        threading.Thread(target=enter, args=(index,), daemon=True).start()


def main(side: str, where: str, nodes: str, share: str) -> None:
    """Take part as the nodes ``FIRST..END`` once told to; then say when the last had joined, and wait to be killed:
    who leaves would disturb those that are still on their way."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    first, _, end = share.partition("..")
    crowd = range(int(first), int(end))
    roll = _Roll(crowd)
    go = (_torch if side == TORCH else _ours)(where, int(nodes), crowd, roll)
    distance = None if side == TORCH else Distance(Path(where), GROUNDS[side])
    print("ready", flush=True)
    sys.stdin.readline()
    go()
    roll.complete.wait()
    counts = distance.counts() if distance else {}
    print(json.dumps({"last": roll.last, "error": roll.error, "counts": counts}), flush=True)
    sys.stdin.read()


# Tables


def tables(results: Mapping[str, Any]) -> list[Table]:
    sides = list(dict.fromkeys(run["side"] for run in results["runs"]))
    sizes = sorted({run["nodes"] for run in results["runs"]})
    return [_times(results, sizes, sides), _operations(results, sizes, sides)]


def _times(results: Mapping[str, Any], sizes: list[int], sides: list[str]) -> Table:
    compared = "local" in sides and TORCH in sides
    rows = []
    for nodes in sizes:
        times = {side: [run["seconds"] for run in _runs(results, nodes, side)] for side in sides}
        cells = [spread(times[side]) for side in sides]
        rows.append((str(nodes), *cells, *([ratio(times["local"], times[TORCH])] if compared else [])))
    parameters = results["parameters"]
    note = (
        f"Seconds; median (least–greatest) of {parameters['repeat']}, nodes as threads of {parameters['processes']} "
        f"processes. *never*: not within {parameters['timeout']:g} s, so not tried with more nodes."
    )
    head = ("nodes", *sides, *(["ours (local) / torch"] if compared else []))
    return Table("A round of N nodes", head, tuple(rows), note)


def _operations(results: Mapping[str, Any], sizes: list[int], sides: list[str]) -> Table:
    rows = []
    for nodes in sizes:
        for side in (side for side in sides if side != TORCH):
            counts = [run["operations"] for run in _runs(results, nodes, side) if run["operations"]]
            means = [sum(one.get(kind, 0) for one in counts) / len(counts) / nodes for kind in KINDS] if counts else []
            cells = map(significant, (sum(means), *means)) if means else ["-"] * (len(KINDS) + 1)
            rows.append((str(nodes), side, *cells))
    head = ("nodes", "filesystem", "operations", *KINDS)
    note = "Means over all nodes; calls of the system, data aside, whether or not a client would have to ask a server."
    return Table("What each node asks of the filesystem until then", head, tuple(rows), note)


def _runs(results: Mapping[str, Any], nodes: int, side: str) -> list[Mapping[str, Any]]:
    return [run for run in results["runs"] if (run["nodes"], run["side"]) == (nodes, side)]


if __name__ == "__main__":
    main(*sys.argv[1:])
