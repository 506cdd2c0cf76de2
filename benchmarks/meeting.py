"""The store in which the workers of a round meet: one TCPStore, with as many clients as fit on this machine.

Each client is a connection, like that of a worker. It does what a worker does at the beginning of a round with NCCL: it
connects, counts itself at a barrier, waits for the key that the last one sets, and gets the id that rank 0 has set.
The processor time of the server, which has one thread, limits larger worlds.
"""

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch.distributed as dist

from benchmarks.machine import CHECKOUT
from benchmarks.processes import cost
from benchmarks.report import Table, ratio, significant, spread
from benchmarks.scale import StoreServer, tcp_store
from hpcelastic.agent.store_server import STORE_SERVER_MODULE, store_server_environment

_LARGE = 80_000
"""The number of ranks for which the time of the server is computed."""

_MEASURED = ("connected", "met", "server")

_SLOW = 10.0
"""Seconds until all ranks are connected after which no larger worlds are measured."""

_PROCESSES = 4
"""Processes that share the clients."""


@dataclass(frozen=True)
class Parameters:
    ranks: tuple[int, ...] = (128, 512, 2048, 8192)
    repeat: int = 3


QUICK = Parameters(ranks=(64, 256), repeat=1)


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Let worlds of each size meet, ``repeat`` times."""
    _allow_connections(max(parameters.ranks))
    runs, sides = [], list(_SIDES)
    for ranks in parameters.ranks:
        for side, _ in product(list(sides), range(parameters.repeat)):
            with _SIDES[side]() as server:
                found = _meet(server, ranks)
            runs.append({"ranks": ranks, "side": side, **found})
            say(f"{ranks} ranks, {side}: connected after {found['connected']:.3f} s, met {found['met']:.3f} s later")
            if found["connected"] > _SLOW and side in sides:
                sides.remove(side)
    return {"parameters": asdict(parameters), "runs": runs}


def _allow_connections(ranks: int) -> None:
    """Let this process and its children open a file for each rank. Raises ValueError if the limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ranks + 100
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _meet(server: StoreServer, ranks: int) -> dict[str, float]:
    """Return the seconds until all are connected, then until the last one has met, and those of the server's CPU."""
    with _clients(server.port, ranks) as clients:
        used = cost(server.pid).cpu
        connected, met = _phase(clients), _phase(clients)
        return {"connected": connected, "met": met, "server": cost(server.pid).cpu - used}


@contextlib.contextmanager
def _store_server() -> Iterator[StoreServer]:
    """Serve the store as an agent of hpcelastic does."""
    with socket.create_server(("0.0.0.0", 0), backlog=4096) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", STORE_SERVER_MODULE, str(fd)],
            env=store_server_environment(os.environ),
            pass_fds=(fd,),
        )
    try:
        dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # it has imported torch
        yield StoreServer(port, server.pid)
    finally:
        server.kill()
        server.wait()


_SIDES = {"hpcelastic": _store_server, "torchrun": tcp_store}


def _phase(clients: Sequence["subprocess.Popen[str]"]) -> float:
    """Let all processes do the next thing. Return the seconds until the last one has done it."""
    began = time.monotonic()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    for client in clients:
        assert client.stdout is not None
        if not client.stdout.readline():
            raise RuntimeError("a process of clients has failed; its output is above")
    return time.monotonic() - began


@contextlib.contextmanager
def _clients(port: int, ranks: int) -> Iterator[Sequence["subprocess.Popen[str]"]]:
    """Start the processes of the clients, and wait until they have imported torch."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.meeting", str(port), str(ranks), str(first)],
            cwd=CHECKOUT,
            env=os.environ | {"RES_OPTIONS": "attempts:0"},  # torch asks the name server for the name of each peer
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(_PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def main(port: int, ranks: int, first: int) -> None:
    """Be the clients of each fourth rank from ``first`` on. A line on standard input begins each phase."""
    _say()
    sys.stdin.readline()
    mine = range(first, ranks, _PROCESSES)
    stores = [dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in mine]
    _say()
    sys.stdin.readline()
    for rank, store in zip(mine, stores, strict=True):
        if rank == 0:
            store.set("id", b"x" * 128)
        if store.add("count", 1) == ranks:
            store.set("barrier", b"")
    for store in stores:
        store.wait(["barrier"])
        store.get("id")
    _say()
    sys.stdin.readline()


def _say() -> None:
    print("done", flush=True)


def tables(results: Mapping[str, Any]) -> list[Table]:
    rows, sizes = [], sorted({run["ranks"] for run in results["runs"]})
    for ranks, key in product(sizes, _MEASURED):
        times = [[run[key] for run in _runs(results, ranks, side)] for side in _SIDES]
        rows.append((f"{ranks:,}", key, *map(spread, times), ratio(*times)))
    server = statistics.median(run["server"] for run in _runs(results, sizes[-1], "hpcelastic"))
    note = (
        f"Seconds; median (least–greatest) of {results['parameters']['repeat']}. *connected*: from the common start "
        "until all ranks are connected. *met*: from there until the last one has passed the barrier and has the id. "
        f"*server*: CPU time of the server. All ranks are clients in {_PROCESSES} processes of this machine. "
        "torch's server asks the name server for the name of each client, and here some questions get no answer. "
        f"-: not measured, because a smaller world took more than {_SLOW:g} s. The "
        f"server has one thread, so {_LARGE:,} ranks take {significant(server * _LARGE / sizes[-1])} s of its time, in "
        f"proportion to {sizes[-1]:,}."
    )
    return [Table("Ranks that meet in one TCPStore", ("ranks", "what", *_SIDES, "ratio"), tuple(rows), note)]


def _runs(results: Mapping[str, Any], ranks: int, side: str) -> list[Mapping[str, Any]]:
    return [run for run in results["runs"] if (run["ranks"], run["side"]) == (ranks, side)]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
