"""Stores over many operations: hpcelastic's RunStore in files, torch's FileStore in a file, torch's TCPStore.

One client adds, sets and gets, in turn, on four keys. RunStore makes each change durable before it counts, which costs
nothing on tmpfs; FileStore and TCPStore make nothing durable. A newcomer is a client that opens the store and gets a
value.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Table, significant, size
from benchmarks.scale import tcp_store

OURS, MEMORY, FILE, TCP = "RunStore", "RunStore on tmpfs", "FileStore", "TCPStore"
_TMPFS = Path("/dev/shm")
_PARTS = 100
_TENTH = _PARTS // 10
_TURN = 6
"""Number of operations in one turn: one of each of three kinds on each of two keys."""

_NEWCOMERS = 5


@dataclass(frozen=True)
class Parameters:
    operations: int = 100_000
    sides: tuple[str, ...] = (OURS, MEMORY, FILE, TCP)


QUICK = Parameters(operations=6_000)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the time of each hundredth of the operations on each store in turn, and the files at the end."""
    turns = parameters.operations // _PARTS // _TURN
    if not turns:
        raise ValueError(f"{parameters.operations} operations are fewer than {_PARTS} parts of {_TURN}")
    runs = []
    for side in parameters.sides:
        with _place(side) as where:
            runs.append({"side": side, **_run(side, where, turns)})
        per = runs[-1]["seconds"]
        say(f"{side}: {significant(per[0] * 1e6)} µs an operation at first, {significant(per[-1] * 1e6)} at last")
    return {"parameters": asdict(parameters), "operations": turns * _PARTS * _TURN, "runs": runs}


@contextlib.contextmanager
def _place(side: str) -> Iterator[str]:
    """Return the place of the values: a directory, or the port of a server."""
    if side == TCP:
        with tcp_store() as server:
            yield str(server.port)
    else:
        parent = _TMPFS if side == MEMORY else None
        with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-", dir=parent) as directory:
            yield directory


def _client(side: str, where: str) -> Any:
    """Return a new client, like that of a separate process."""
    import torch.distributed as dist

    from hpcelastic.pytorch import RunStore

    if side in (OURS, MEMORY):
        return RunStore(where)
    if side == FILE:
        return dist.FileStore(str(Path(where) / "store"), -1)
    return dist.TCPStore("127.0.0.1", int(where), is_master=False, wait_for_workers=False)


def _run(side: str, where: str, turns: int) -> dict[str, Any]:
    """Return the seconds of an operation in each part, and of a newcomer after the first and after the last tenth."""
    store, seconds, newcomers, made = _client(side, where), list[float](), list[float](), 0
    for part in range(1, _PARTS + 1):
        since = time.monotonic()
        for _ in range(turns):
            made += 1
            for key in ("a", "b"):
                store.add(f"number {key}", 1)
                store.set(f"word {key}", f"{made} times")
                if int(store.get(f"number {key}")) != made:
                    raise RuntimeError(f"{side} has lost or repeated an addition at the {made}th")
        seconds.append((time.monotonic() - since) / turns / _TURN)
        if part in (_TENTH, _PARTS):
            newcomers.append(statistics.median(_newcomer(side, where) for _ in range(_NEWCOMERS)))
    sizes = [] if side == TCP else [path.stat().st_size for path in Path(where).rglob("*") if path.is_file()]
    return {"seconds": seconds, "newcomers": newcomers, "files": len(sizes), "bytes": sum(sizes)}


def _newcomer(side: str, where: str) -> float:
    since = time.monotonic()
    _client(side, where).get("number a")
    return time.monotonic() - since


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows = []
    for run in results["runs"]:
        seconds = run["seconds"]
        paces = [seconds[0], min(seconds[_TENTH : 2 * _TENTH]), min(seconds[-_TENTH:])]
        ratios = (significant(paces[-1] / pace) for pace in paces[:-1])
        disk = ("-", "-") if run["side"] == TCP else (f"{run['files']:,}", size(run["bytes"]))
        rows.append((run["side"], *map(_microseconds, paces), *ratios, *disk, *map(_microseconds, run["newcomers"])))
    head = ("side", "first hundredth", "second tenth", "last tenth", "last / first", "last / second", "files", "bytes")
    note = (
        f"Microseconds of an operation, in {results['operations']:,} operations: add, set and get in turn. For a "
        "tenth, the value is that of its fastest hundredth, because other programs can only make it slower. Files "
        "and bytes are those at the end. RunStore keeps and lists the versions of the last five seconds, so its first "
        "operations are the fastest. A newcomer opens the store and gets a value, after the first tenth of the "
        "operations and after the last."
    )
    newcomers = ("a newcomer after a tenth", "after the last")
    return [Table("add, set and get on torch's stores", (*head, *newcomers), tuple(rows), note)]


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"
