"""Model a run on many nodes, and print what each event takes and costs.

    python -m benchmarks.model 64 1024 10000

Times are virtual. The processor time of the code is measured, so that results are only valid on an idle machine.
"""

import argparse
import sys
from collections.abc import Collection, Iterator
from random import Random

from benchmarks.model.cluster import Cluster, Effort, directory_sizes, version_size
from benchmarks.model.parameters import Model

_IDLE = 30.0
"""Seconds for which a round runs before something happens to it."""

_SPREAD = 10.0
"""More seconds, at most. The leaders read the leases at regular times, so nodes are lost at random ones."""

_LOSSES, _LARGE_LOSSES = 5, 3
"""The number of losses of one node, and of one node in a hundred."""

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
        random = Random(0)
        left = {*range(size)}

        def lose(indexes: Collection[int]) -> Effort:
            cluster.idle(_IDLE + random.uniform(0, _SPREAD))
            cluster.lose(indexes)
            left.difference_update(indexes)
            return cluster.until_round(cluster.round + 1, len(left))

        for _ in range(_LOSSES):
            yield "one lost", lose(random.sample(sorted(left), 1))
        cluster.idle(_IDLE)
        drained = sorted(left)[size // 3]
        cluster.drain(drained)
        left.remove(drained)
        yield "drained", cluster.until_round(cluster.round + 1, len(left))
        cluster.idle(_IDLE)
        if cluster.settings.rendezvous.min_lease > _PAUSE:  # else the guards of all nodes kill the workers
            cluster.pause_storage(_PAUSE)
            yield f"pause {_PAUSE:g} s", cluster.idle(2 * _PAUSE)
        for _ in range(_LARGE_LOSSES):
            yield "1 % lost", lose(random.sample(sorted(left), max(1, size // 100)))
        cluster.idle(_IDLE)
        if size <= _MOST_READERS:
            yield "half lost", lose([index for index in left if index % 2 == 0])
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
