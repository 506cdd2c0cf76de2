"""Compare the model with real agents on this machine, and print both.

    python -m benchmarks.model.here 64 256 1024

All nodes are processes of this machine and share its processors, in the model too. The model does not execute the
start of threads and sockets, the links between neighbours, the faults of memory pages that a process shares with its
parent, and what the kernel does outside of the processes. Their processor time is measured with `_CALIBRATED` nodes,
as the time for which the processors of the machine are busy. So the machine must have no other work.
"""

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.model.cluster import Cluster
from benchmarks.model.parameters import Fabric, Model, Processor, Storage
from benchmarks.scale import Parameters, on_side

_CALIBRATED = (128, 512)
"""The numbers of nodes with which the processor time is measured that the model does not execute. It is larger with
more nodes, whose data does not fit into the caches of the processors, and the mean counts."""

_REPEAT = 5

_DISK = Storage(operations=1e6, round_trip=0.0, sync=0.0005, bandwidth=1e10)
"""A filesystem of this machine. The processor time of its operations counts as time of the nodes."""

_LOOPBACK = Fabric(latency=0.00002)


@dataclass(frozen=True)
class Times:
    """The times of an event in seconds."""

    seconds: float
    """Until the last node has its round."""

    processor: float
    """The processor time of a node. Of real nodes, the time for which processors were busy, by their number."""


@dataclass(frozen=True)
class Pair:
    """The first round of a run, and the next one after the loss of a node."""

    cold: Times
    lost: Times


def measured(nodes: int, directory: Path) -> Pair:
    """Return the medians of real agents."""
    runs = [on_side("local", nodes, Parameters(), directory / f"{nodes}-{index}") for index in range(_REPEAT)]

    def median(name: str) -> float:
        return statistics.median(getattr(run, name) for run in runs)

    cold = Times(median("seconds"), median("busy") / nodes)
    return Pair(cold, Times(median("after_loss"), median("loss_busy") / nodes))


def modelled(nodes: int, processor: Processor) -> Pair:
    """Return what the model says with the given processors."""
    cluster = Cluster(nodes, Model(_DISK, _LOOPBACK, processor), least=max(1, nodes - 1))
    try:
        cluster.start()
        cold = cluster.until_round(1, nodes)
        cluster.idle(10.0)
        cluster.lose([nodes // 2])
        lost = cluster.until_round(2, nodes - 1)
    finally:
        cluster.close()
    return Pair(Times(cold.seconds, cold.processor / nodes), Times(lost.seconds, lost.processor / nodes))


def calibrated(real: Pair, nodes: int) -> Processor:
    """Return processors with which the model needs the ``real`` processor times with ``nodes`` nodes.

    A turn of a thread explains the time after a loss, and the start of an agent the rest of the time of the first
    round.
    """
    bare = Processor(start=0.0, turn=0.0, shared=os.cpu_count() or 1)
    without, turn = modelled(nodes, bare), 0.001
    with_turn = modelled(nodes, replace(bare, turn=turn))
    turn *= (real.lost.processor - without.lost.processor) / (with_turn.lost.processor - without.lost.processor)
    turn = max(0.0, turn)
    start = real.cold.processor - modelled(nodes, replace(bare, turn=turn)).cold.processor
    return replace(bare, turn=turn, start=max(0.0, start))


def row(nodes: int, what: str, real: Times, model: Times) -> str:
    """Return one line about an event."""
    return (
        f"{nodes:5} {what:4}  real {real.seconds:6.2f} s, modelled {model.seconds:6.2f} s, "
        f"ratio {model.seconds / real.seconds:.2f}; processor time of a node: "
        f"real {1000 * real.processor:5.1f} ms, modelled {1000 * model.processor:5.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="+", type=int, help="numbers of nodes")
    sizes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-") as directory:
        found = [calibrated(measured(nodes, Path(directory)), nodes) for nodes in _CALIBRATED]
        start, turn = statistics.mean(p.start for p in found), statistics.mean(p.turn for p in found)
        it = replace(found[0], start=start, turn=turn)
        print(f"measured with {_CALIBRATED} nodes: start {1000 * start:.1f} ms, turn {1000 * turn:.2f} ms")
        for nodes in sizes:
            real, model = measured(nodes, Path(directory)), modelled(nodes, it)
            print(row(nodes, "cold", real.cold, model.cold))
            print(row(nodes, "lost", real.lost, model.lost), flush=True)


if __name__ == "__main__":
    main()
