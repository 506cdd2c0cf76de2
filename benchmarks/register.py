"""Compare-and-sets: hpcelastic's register in files, torch's FileStore in a file, torch's TCPStore in a server.

Contenders increment one counter: each reads it, and sets it if no other one was faster. Contenders are threads in a
fixed number of processes. The register makes every version durable before it counts; FileStore and TCPStore make
nothing durable. Then a single client increments 10,000 times, to show the growth of time and files.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.machine import CHECKOUT
from benchmarks.processes import end_tree
from benchmarks.report import Table, ratio, significant, size, spread
from benchmarks.scale import tcp_store

OURS, KEPT, MEMORY, FILE, TCP = "register", "register, all kept", "register on tmpfs", "FileStore", "TCPStore"
SIDES = (OURS, KEPT, MEMORY, FILE, TCP)
_MEMORY = Path("/dev/shm")
_KEPT_VERSIONS = 16
"""Number of versions that the key-value store keeps. The rendezvous keeps all."""

Increment = Callable[[], bool]
"""A function that tries to increment once and returns whether it has set the counter."""


@dataclass(frozen=True)
class Parameters:
    contenders: tuple[int, ...] = (1, 8, 64)
    processes: int = 8
    seconds: float = 5.0
    repeat: int = 3
    operations: int = 10_000
    sides: tuple[str, ...] = SIDES


QUICK = Parameters(seconds=2.0, repeat=1, operations=2_000)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure contention on all stores in turn, then the growth of each."""
    races = []
    for contenders in parameters.contenders:
        for _ in range(parameters.repeat):
            for name in parameters.sides:
                with _place(name) as where:
                    won, tried = _race(name, where, contenders, parameters)
                races.append({"side": name, "contenders": contenders, "won": won, "tried": tried})
                say(f"{contenders} contenders, {name}: {significant(won / parameters.seconds)} per second")
    growth = [one for name in parameters.sides for one in _growth(name, parameters.operations, say)]
    return {"parameters": asdict(parameters), "races": races, "growth": growth}


@contextlib.contextmanager
def _place(name: str) -> Iterator[str]:
    """Return the place of the counter: a directory, or the port of a server."""
    if name == TCP:
        with tcp_store() as server:
            yield str(server.port)
    else:
        parent = _MEMORY if name == MEMORY else None
        with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-", dir=parent) as directory:
            yield directory


def _client(name: str, where: str) -> Increment:
    """Return a new client, like that of a separate process."""
    if name in (OURS, KEPT, MEMORY):
        return _register(Path(where), None if name == KEPT else _KEPT_VERSIONS)
    import torch.distributed as dist

    if name == TCP:
        return _torch_store(dist.TCPStore("127.0.0.1", int(where), is_master=False, wait_for_workers=False))
    store = dist.FileStore(str(Path(where) / "store"), -1)
    store.set_timeout(timedelta(seconds=60))
    return _torch_store(store)


def _register(directory: Path, keep: int | None) -> Increment:
    from hpcelastic.storage.register import Register

    register = Register(directory, "bench", keep=keep)

    def increment() -> bool:
        with register.lock():
            old = register.read()
            return register.commit(old.number, (old.value or 0) + 1)

    return increment


def _torch_store(store: Any) -> Increment:
    import uuid

    me = uuid.uuid4().hex
    known = ""

    def increment() -> bool:
        nonlocal known
        number = int(known.partition(" ")[0] or 0)
        wanted = f"{number + 1} {me}"  # the value names its writer, because the answer is the value only
        found = store.compare_set("counter", known, wanted).decode()
        known = found
        return bool(found == wanted)

    return increment


def _race(name: str, where: str, contenders: int, parameters: Parameters) -> tuple[int, int]:
    """Return the successful and all increments of all contenders in ``parameters.seconds`` seconds."""
    count = min(parameters.processes, contenders)
    command = [sys.executable, "-m", "benchmarks.register", name, where, str(contenders // count)]
    crowd = []
    try:
        for _ in range(count):
            crowd.append(
                subprocess.Popen(
                    [*command, str(parameters.seconds)],
                    cwd=CHECKOUT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in crowd:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{name}: a process with contenders did not start")
        for process in crowd:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in crowd]
    finally:
        for process in crowd:
            if process.poll() is None:
                end_tree(process.pid)
                process.wait()
    return sum(answer["won"] for answer in answers), sum(answer["tried"] for answer in answers)


def main(name: str, where: str, threads: str, seconds: str) -> None:
    """Wait for a line on standard input, contend in ``threads`` threads for ``seconds``, and print the result."""
    clients = [_client(name, where) for _ in range(int(threads))]
    scores = [[0, 0] for _ in clients]
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)

    def contend(client: Increment, score: list[int]) -> None:
        while time.monotonic() < until:
            won = client()
            score[0] += won
            score[1] += 1

    crowd = [threading.Thread(target=contend, args=pair) for pair in zip(clients, scores, strict=True)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    print(json.dumps({"won": sum(s[0] for s in scores), "tried": sum(s[1] for s in scores)}), flush=True)


def _growth(name: str, operations: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the seconds of each tenth of the operations, and the files after it."""
    tenth, found = operations // 10, []
    with _place(name) as where:
        client = _client(name, where)
        for part in range(1, 11):
            since = time.monotonic()
            made = 0
            while made < tenth:  # torch's client detects the newcomer's increment by a failed attempt
                made += client()
            taken = time.monotonic() - since
            files = [] if name == TCP else [path for path in Path(where).iterdir() if path.is_file()]
            sizes = sum(path.stat().st_size for path in files)
            one = {"side": name, "operations": part * tenth, "seconds": taken, "files": len(files), "bytes": sizes}
            found.append({**one, "newcomer": _newcomer(name, where)})
        say(f"{name}: {operations} operations, the last {tenth} in {significant(taken)} s")
    return found


def _newcomer(name: str, where: str) -> float:
    """Return the seconds of the first increment of a new client."""
    client = _client(name, where)
    since = time.monotonic()
    while not client():  # the first attempt of torch's client reads the value
        continue
    return time.monotonic() - since


def tables(results: Mapping[str, Any]) -> list[Table]:
    return [_contention(results), _growth_table(results)]


def _contention(results: Mapping[str, Any]) -> Table:
    parameters = results["parameters"]
    peers = [name for name in (FILE, TCP) if name in parameters["sides"]]
    rows = []
    for contenders in parameters["contenders"]:
        rates = {name: _rates(results, name, contenders) for name in parameters["sides"]}
        compared = [ratio(rates[OURS], rates[peer]) for peer in peers if OURS in rates]
        rows.append((str(contenders), *map(spread, rates.values()), *compared))
    head = ("contenders", *parameters["sides"], *(f"{OURS} / {peer}" for peer in peers if OURS in parameters["sides"]))
    note = (
        f"Increments per second in {parameters['seconds']:g} s, median (least–greatest) of {parameters['repeat']}: "
        f"more is better. The register keeps its last {_KEPT_VERSIONS} versions, like the key-value store, or all. The "
        "rendezvous keeps 500. Each version is durable (fsync) before it counts, which takes no time on tmpfs. Stores "
        "of torch are not durable."
    )
    return Table("Compare-and-sets under contention", head, tuple(rows), note)


def _rates(results: Mapping[str, Any], name: str, contenders: int) -> list[float | None]:
    races = [race for race in results["races"] if (race["side"], race["contenders"]) == (name, contenders)]
    return [race["won"] / results["parameters"]["seconds"] for race in races]


def _growth_table(results: Mapping[str, Any]) -> Table:
    rows = []
    for name in results["parameters"]["sides"]:
        parts = [one for one in results["growth"] if one["side"] == name]
        for one in (parts[0], parts[-1]):
            pace = one["seconds"] / parts[0]["operations"] * 1000
            disk = ("-", "-") if name == TCP else (str(one["files"]), size(one["bytes"]))
            cells = (f"{one['operations']:,}", significant(pace), *disk, significant(one["newcomer"] * 1000))
            rows.append((name, *cells))
    note = "Seconds for 1,000 operations, measured in the last tenth of them. TCPStore is lost with its server."
    head = ("side", "operations so far", "seconds per 1,000", "files", "bytes", "a newcomer's first (ms)")
    return Table("Growth over many operations", head, tuple(rows), note)


if __name__ == "__main__":
    main(*sys.argv[1:])
