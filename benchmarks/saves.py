"""A worker for the benchmarks that measures its checkpoints, writes the results, and sleeps.

``saves.py NOTES MIB REPEAT STEPS``
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hpcelastic.training import Checkpoints, context
from hpcelastic.training.periodic_snapshots import PeriodicSnapshots
from hpcelastic.training.recovery import Held

_TENSORS = 64
STEP = 0.1
"""Seconds of a training step."""

STEP_STATE = 128
"""MiB of the state in the training steps."""

SAVE_EVERY = 10
_BLOCKS = 4
"""Number of blocks of training steps of each kind in each repetition."""


def main(notes: str, mib: str, repeat: str, steps: str) -> None:
    torch.set_num_threads(1)
    os.chdir(notes)
    results = {**standstill(int(mib), int(repeat)), **training(int(steps), int(repeat))}
    draft = Path(notes, "results.draft")
    draft.write_text(json.dumps(results))
    draft.rename(Path(notes, "results.json"))
    while True:
        time.sleep(3600)


def state_of(mib: int) -> dict[str, torch.Tensor]:
    return {f"tensor {number}": torch.rand(mib * 2**18 // _TENSORS) for number in range(_TENSORS)}


def standstill(mib: int, repeat: int) -> dict[str, list[float]]:
    """Measure for how long a save stops the training, and how long a load takes."""
    state, checkpoints = state_of(mib), Checkpoints(keep=1)
    copies = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    names = ("copy", "background", "memory", "in place", "wait", "torch.save", "load", "torch.load")
    found: dict[str, list[float]] = {name: [] for name in names}

    def copy() -> None:
        for name, tensor in state.items():
            copies[name].copy_(tensor)

    def plain(path: Path = Path("plain.pt")) -> None:
        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def load(in_memory: bool, like: dict[str, torch.Tensor] | None = None) -> None:
        loaded = checkpoints.load(like=like)
        assert loaded is not None and loaded.in_memory == in_memory

    for warm_up in range(4):  # the first saves allocate the memory
        checkpoints.save(warm_up, state, wait=False)
        checkpoints.flush()
    for number in range(repeat):
        found["copy"].append(timed(copy))
        found["background"].append(timed(lambda step=10 + 2 * number: checkpoints.save(step, state, wait=False)))
        assert checkpoints.flush() and checkpoints.is_kept(60), "the state is neither published nor in memory"
        found["memory"].append(timed(lambda: load(in_memory=True)))
        found["in place"].append(timed(lambda: load(in_memory=True, like=copies)))
        assert all(torch.equal(state[name], copies[name]) for name in state)
        found["wait"].append(timed(lambda step=11 + 2 * number: checkpoints.save(step, state)))
        found["torch.save"].append(timed(plain))
        found["load"].append(timed(lambda: load(in_memory=False)))
        found["torch.load"].append(timed(lambda: torch.load("plain.pt", weights_only=True)))
    return found


def training(steps: int, repeat: int) -> dict[str, list[float]]:
    """Measure steps with saves in the background and with snapshots as often as is best, in turn with steps without.

    They take turns in blocks of steps, so that a machine that becomes slower for some seconds affects all alike.
    """
    state, checkpoints = state_of(STEP_STATE), Checkpoints("steps", keep=1)
    matrix = torch.rand(512, 512)
    each = min(timed(lambda: torch.mm(matrix, matrix)) for _ in range(50))
    products, block = max(1, round(STEP / each)), max(1, steps // _BLOCKS)

    saved, taken = itertools.count(), itertools.count(1)

    snapshots = PeriodicSnapshots(checkpoints, "auto", sharded=False)
    snapshots.begin_round(context(), 0)

    def train(save_every: int, with_snapshots: bool = False) -> float:
        """Return the seconds of a block of steps."""
        began = time.perf_counter()
        for step in range(block):
            if with_snapshots:
                held = Held(context().round, next(taken))
                if snapshots.is_due(held.step):
                    snapshots.take(held, lambda: state)
            for _ in range(products):
                torch.mm(matrix, matrix)
            if save_every and step % save_every == 0:
                checkpoints.save(next(saved), state, wait=False)
        return time.perf_counter() - began

    train(SAVE_EVERY)  # the first saves allocate the memory
    train(0, with_snapshots=True)
    found: dict[str, list[float]] = {"steps": [], "steps with saves": [], "steps with snapshots": []}
    for _ in range(repeat):
        seconds = dict.fromkeys(found, 0.0)
        for _ in range(_BLOCKS):
            seconds["steps with saves"] += train(SAVE_EVERY)
            checkpoints.flush()
            seconds["steps"] += train(0)
            seconds["steps with snapshots"] += train(0, with_snapshots=True)
        for name, total in seconds.items():
            found[name].append(total / (block * _BLOCKS))
    return found


def timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(*sys.argv[1:])
