"""Many runs at once: ``python -m benchmarks.idle_runs DIRECTORY RUNS NODES``.

Each node is a process without workers, forked from a process that has imported all modules. The command prints a line
for each node that has its round, and stays until it is killed.
"""

import gc
import os
import sys
import threading
from pathlib import Path

from benchmarks import wiring
from hpcelastic.storage.paths import RunPaths


def main(directory: str, runs: str, nodes: str) -> None:
    wiring.warm_up()
    gc.freeze()
    for run in range(int(runs)):
        paths = RunPaths(Path(directory) / f"run-{run:04d}")
        wiring.make_run(paths, int(nodes))
        for index in range(int(nodes)):
            if not os.fork():
                wiring.join(paths, index, int(nodes))()
                os.write(1, b"joined\n")
                threading.Event().wait()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
