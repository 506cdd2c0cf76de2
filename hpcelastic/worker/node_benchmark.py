"""Measures a node, and the connection between two nodes, for `hpcelastic doctor --benchmark`.

``python -m hpcelastic.worker.node_benchmark`` reads a command in each line of standard input, as a JSON object. It
answers each with a line of JSON on its standard output:

* ``{"do": "compute"}``: a list with an object for each GPU, or one for the processors: ``device``, ``flops``
  (operations a second of a matrix product) and ``memory`` (bytes a second of a copy).
* ``{"do": "serve", "address": A}``: ``{"port": P}``, and then the results as for ``connect``.
* ``{"do": "connect", "address": A, "port": P}``: ``latency`` (seconds of a collective of one number), ``bandwidth``
  (bytes a second of a collective, by gloo), and ``gather`` (the same by NCCL; null without GPUs).

An error is answered by ``{"error": TEXT}``.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

COMMAND = (sys.executable, "-m", "hpcelastic.worker.node_benchmark")
"""The command line of this program."""

_SECONDS = 0.5
"""Duration of each measurement. The best of three counts, because a machine may be busy for a moment."""

_TRIES = 3
_PINGS = 20
"""Number of collectives of one number in each of the measurements of latency."""

_PAUSES, _PAUSE = 6, 0.2
"""Number of pauses between these measurements, and the seconds of a pause."""

_BYTES, _FEW_BYTES = 16 << 20, 1 << 20
"""Size of the messages that measure a bandwidth, and that of the first ones. A slow connection transfers only these."""

_TRANSFER_SECONDS = 2.0
"""Duration of the measurement of a bandwidth, during which the partner's next partner waits."""

_TIMEOUT = timedelta(seconds=20)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    with open(answers, "w", buffering=1) as output:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                results: Iterator[Any] = ACTIONS[command.pop("do")](**command)
                for result in results:
                    output.write(json.dumps(result) + "\n")
            except Exception as error:
                output.write(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}) + "\n")


def _compute() -> Iterator[list[dict[str, Any]]]:
    import torch

    if not torch.cuda.is_available():
        yield [{"device": "processors", **_speeds(torch, "cpu", size=768, copied=32 << 20)}]
        return
    found = []
    for index in range(torch.cuda.device_count()):
        speeds = _speeds(torch, f"cuda:{index}", size=8192, copied=1 << 30)
        found.append({"device": f"GPU {index} ({torch.cuda.get_device_name(index)})", **speeds})
    yield found


def _speeds(torch: Any, device: str, size: int, copied: int) -> dict[str, float]:
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    one = torch.randn(size, size, device=device, dtype=kind)
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))
    flops = 2 * size**3 * _rate(lambda: one @ one, wait)
    return {"flops": flops, "memory": 2 * copied * _rate(lambda: target.copy_(source), wait)}


def _rate(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the greatest number of calls a second."""
    call()
    wait()
    best = 0.0
    for _ in range(_TRIES):
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + _SECONDS:
            call()
            count += 1
            if count % 8 == 0:
                wait()
        wait()
        best = max(best, count / (time.perf_counter() - start))
    return best


def _serve(address: str) -> Iterator[dict[str, Any]]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition

    store = TCPStore(address, 0, 2, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
    yield {"port": store.port}
    yield _measured(store, 0)
    store.wait(["done"], _TIMEOUT)  # the other node still uses the store


def _connect(address: str, port: int) -> Iterator[dict[str, Any]]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition

    store = TCPStore(address, port, 2, is_master=False, timeout=_TIMEOUT)
    yield _measured(store, 1)
    store.set("done", "")


def _measured(store: Any, rank: int) -> dict[str, Any]:
    import statistics  # here, because agents import this module for its command line

    import torch

    with _group("gloo", store, rank):
        one = torch.zeros(1)

        def ping() -> float:
            return statistics.median(_times(lambda: torch.distributed.all_reduce(one), _PINGS))

        # At several times, because other processes may delay many collectives in a row.
        latencies = [ping()]
        bandwidth = _gathered(torch, "cpu")
        for _ in range(_PAUSES):
            latencies.append(ping())
            time.sleep(_PAUSE)
        latency = min(latencies)
    gather = None
    if torch.cuda.is_available():
        with _group("nccl", store, rank):
            gather = _gathered(torch, "cuda:0")
    return {"latency": latency, "bandwidth": bandwidth, "gather": gather}


def _gathered(torch: Any, device: str) -> float:
    """Return the bytes a second that each of two nodes receives from the other."""
    few = _gather_seconds(torch, device, _FEW_BYTES, tries=2)
    if few * _BYTES / _FEW_BYTES > _TRANSFER_SECONDS / 4:
        return _FEW_BYTES / min(few, _gather_seconds(torch, device, _FEW_BYTES, tries=3))
    return _BYTES / _gather_seconds(torch, device, _BYTES, tries=2 * _TRIES)


def _gather_seconds(torch: Any, device: str, size: int, tries: int) -> float:
    """Return the seconds of the fastest of some exchanges of ``size`` bytes. Both nodes get the same result."""
    ours = torch.zeros(size, dtype=torch.uint8, device=device)
    theirs = [torch.empty_like(ours) for _ in range(2)]

    def gather() -> None:
        torch.distributed.all_gather(theirs, ours)
        if device != "cpu":
            torch.cuda.synchronize(device)

    gather()
    fastest = torch.tensor(min(_times(gather, tries)), device=device)
    torch.distributed.all_reduce(fastest, torch.distributed.ReduceOp.MAX)
    return float(fastest.item())


def _times(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


@contextlib.contextmanager
def _group(backend: str, store: Any, rank: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # exported under a condition

    store = PrefixStore(backend, store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=_TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


ACTIONS: dict[str, Callable[..., Iterator[Any]]] = {"compute": _compute, "serve": _serve, "connect": _connect}
"""The function of each command. It yields the answers."""

if __name__ == "__main__":
    main()
