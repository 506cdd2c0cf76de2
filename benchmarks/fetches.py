"""A worker for the benchmarks that loads a state which was in the memory of a lost node. ``fetches.py NOTES MIB``

In the first round rank 0 takes a snapshot, and notes that the copy on another node is complete. In the next round all
workers load the snapshot together, and rank 0 notes the seconds. One of them is on the node that has the copy, and the
other one gets the state through the network.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpcelastic.training import Checkpoints, context

KEPT, LOADED = "kept", "loaded"
"""Names of the notes: the snapshot and its copy are complete; the seconds of the load."""

_TIMEOUT = 300.0
"""Seconds that the copy of a snapshot may take."""


def main(notes: str, mib: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if context().round == 1:
        keep(Path(notes), int(mib))
    else:
        load(Path(notes), int(mib))
    while True:
        time.sleep(3600)


def keep(notes: Path, mib: int) -> None:
    """Take a snapshot in rank 0."""
    if context().rank == 0:
        checkpoints = Checkpoints()
        assert checkpoints.snapshot(1, {"state": torch.rand(mib * 2**18)}), "no snapshot was taken"
        assert checkpoints.is_kept(_TIMEOUT), "the snapshot has no copy"
        (notes / KEPT).touch()


def load(notes: Path, mib: int) -> None:
    """Load the snapshot in all ranks."""
    checkpoints, like = Checkpoints(), {"state": torch.ones(mib * 2**18)}
    dist.barrier()
    began = time.perf_counter()
    loaded = checkpoints.load(like=like)
    seconds = time.perf_counter() - began
    assert loaded is not None and loaded.in_memory and loaded.step == 1
    if context().rank == 0:
        draft = notes / f"{LOADED}.draft"
        draft.write_text(str(seconds))
        draft.rename(notes / LOADED)


if __name__ == "__main__":
    main(*sys.argv[1:])
