"""A worker for the benchmarks that trains a small model. ``trains.py NOTES elastic|plain [BUILD]``

``elastic`` keeps its state in memory; ``plain`` saves every 50 steps, and a new process loads that. Building the model
takes BUILD seconds. Each step is noted. Times are those of the monotonic clock, which all processes of a machine share.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcelastic.training import Elastic, GlobalBatches

_LAST = 1_000_000
_PAUSE = 0.02
"""Seconds between two steps, as if they computed something."""

_SAVE_EVERY = 50


def main(notes: str, mode: str, build: str = "0") -> None:
    data = torch.utils.data.TensorDataset(torch.randn(600, 8), torch.randn(600, 1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    time.sleep(float(build))
    with open(os.path.join(notes, f"{os.getpid()}.jsonl"), "w", buffering=1) as file:
        if mode == "elastic":
            elastic = Elastic(model=model, optimizer=optimizer, batches=GlobalBatches(len(data), 60))
            elastic.run(_train_elastic, data, file)
        else:
            _train_plain(model, optimizer, data, file, os.path.join(notes, "checkpoint.pt"))


def _train_elastic(elastic: Elastic, data: Any, file: IO[str]) -> None:
    model = DistributedDataParallel(elastic.model)
    for step, (x, y) in elastic.steps(data, last=_LAST):
        elastic.optimizer.zero_grad()
        elastic.scale_loss(torch.nn.functional.mse_loss(model(x), y, reduction="sum")).backward()
        elastic.optimizer.step()
        _note(file, step)


def _train_plain(model: Any, optimizer: Any, data: Any, file: IO[str], checkpoint: str) -> None:
    dist.init_process_group("gloo")
    first = 0
    with suppress(FileNotFoundError):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    for step, (x, y) in _steps(data, first):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        _note(file, step)
        if dist.get_rank() == 0 and (step + 1) % _SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, f"{checkpoint}.draft")
            os.replace(f"{checkpoint}.draft", checkpoint)


def _steps(data: Any, first: int) -> Iterator[tuple[int, Any]]:
    batches, rank, size = GlobalBatches(len(data), 60), dist.get_rank(), dist.get_world_size()
    for step in range(first, _LAST):
        yield step, data[batches.indices(step)[rank::size]]


def _note(file: IO[str], step: int) -> None:
    facts = {"time": time.monotonic(), "world": dist.get_world_size(), "rank": dist.get_rank(), "pid": os.getpid()}
    file.write(json.dumps({**facts, "step": step, "round": int(os.environ.get("HPCELASTIC_ROUND", "0"))}) + "\n")
    time.sleep(_PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
