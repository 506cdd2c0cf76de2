"""Model a run on many nodes, and print what each event takes and costs.

    python -m benchmarks.model 64 1024 10000

Times are virtual. The processor time of the code is measured, so that results are only valid on an idle machine.
"""

import argparse
import sys
from collections.abc import Iterator
from random import Random

from benchmarks.model.cluster import Cluster, Effort, directory_sizes, version_size
from benchmarks.model.parameters import Model

_IDLE = 30.0
"""Seconds for which a round runs before something happens to it."""

_PAUSE = 10.0
"""Seconds for which the filesystem does not answer."""

_MOST_READERS = 4096
"""The largest number of nodes of which half are lost. Each of the others reads all leases then. That needs about 15 GB
for so many nodes, by estimate, and four times as much for twice as many: 24 GB were not enough for 10,000."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="+", type=int, help="numbers of nodes")
    for size in parser.parse_args().nodes:
        print(f"{size} nodes")
        for what, effort in events(size):
            print(f"    {what:10} {row(effort, size)}", flush=True)


def events(size: int) -> Iterator[tuple[str, Effort]]:
    """Let a run begin, let nothing happen, and let nodes leave and be lost. Return what each of these has cost."""
    cluster = Cluster(size, Model(), least=max(1, size // 4))
    try:
        cluster.start()
        yield "cold", cluster.until_round(1, size)
        yield f"idle {_IDLE:g} s", cluster.idle(_IDLE)
        lost = [size // 2]
        cluster.lose(lost)
        yield "one lost", cluster.until_round(2, size - len(lost))
        cluster.idle(_IDLE)
        cluster.drain(size // 3)
        lost.append(size // 3)
        yield "drained", cluster.until_round(3, size - len(lost))
        cluster.idle(_IDLE)
        if cluster.settings.rendezvous.min_lease > _PAUSE:  # else the guards of all nodes kill the workers
            cluster.pause_storage(_PAUSE)
            yield f"pause {_PAUSE:g} s", cluster.idle(2 * _PAUSE)
        more = sorted({*Random(0).sample(range(size), max(1, size // 100))} - {*lost})
        cluster.lose(more)
        lost += more
        yield "1 % lost", cluster.until_round(cluster.round + 1, size - len(lost))
        cluster.idle(_IDLE)
        if size <= _MOST_READERS:
            more = [index for index in range(0, size, 2) if index not in lost]
            cluster.lose(more)
            lost += more
            yield "half lost", cluster.until_round(cluster.round + 1, size - len(lost))
        cluster.requeue(_IDLE)
        yield "requeued", cluster.until_round(cluster.round + 1, size - 1)  # one is drained
        largest = max(directory_sizes(cluster).values())
        shortest = cluster.settings.rendezvous.min_lease
        sys.stdout.write(
            f"    shortest lease that auto chooses: {shortest:g} s; largest directory: {largest} names; "
            f"newest version: {version_size(cluster)} bytes\n"
        )
    finally:
        cluster.close()


def row(effort: Effort, size: int) -> str:
    """Return one line about an event."""
    return (
        f"{effort.seconds:8.2f} s {effort.requests / size:7.1f} requests a node, {effort.most} at most, "
        f"{effort.requests / effort.seconds:,.0f} a second, "
        f"{effort.messages / size:5.1f} messages a node, {effort.read / 1e6:8.1f} MB read, "
        f"{1000 * effort.processor / size:6.2f} ms of processor a node"
    )


if __name__ == "__main__":
    main()
