"""A worker for the benchmarks that hangs on request: ``hanging.py NOTES elastic|plain``

It makes a step every 20 ms, and notes each. Once the file ``hang`` exists among the notes, rank 1 writes the time to
``hung`` and sleeps, until its process ends. Times are those of the monotonic clock, which all processes of a machine
share.
"""

import json
import os
import sys
import time
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcelastic.training import Elastic, GlobalBatches

_LAST = 1_000_000


def main(notes: str, mode: str) -> None:
    with open(os.path.join(notes, f"{os.getpid()}.jsonl"), "a", buffering=1) as file:
        if mode == "elastic":
            data = torch.utils.data.TensorDataset(torch.randn(600, 8), torch.randn(600, 1))
            model = torch.nn.Linear(8, 1)
            elastic = Elastic(
                model=model, optimizer=torch.optim.AdamW(model.parameters()), batches=GlobalBatches(len(data), 60)
            )
            elastic.run(_train, data, file, notes)
        else:
            dist.init_process_group("gloo")
            while True:
                dist.all_reduce(torch.zeros(1))
                _step(file, notes)


def _train(elastic: Elastic, data: Any, file: IO[str], notes: str) -> None:
    model = DistributedDataParallel(elastic.model)
    for _, (x, y) in elastic.steps(data, last=_LAST):
        elastic.optimizer.zero_grad()
        elastic.scale_loss(torch.nn.functional.mse_loss(model(x), y, reduction="sum")).backward()
        elastic.optimizer.step()
        _step(file, notes)


def _step(file: IO[str], notes: str) -> None:
    world = {"world": dist.get_world_size(), "rank": dist.get_rank(), "round": int(os.environ["HPCELASTIC_ROUND"])}
    file.write(json.dumps({"time": time.monotonic(), "pid": os.getpid(), **world}) + "\n")
    time.sleep(0.02)
    if dist.get_rank() == 1 and os.path.exists(os.path.join(notes, "hang")):
        os.remove(os.path.join(notes, "hang"))
        draft = os.path.join(notes, "hung.draft")
        with open(draft, "w") as hung:
            json.dump([time.monotonic(), time.time()], hung)
        os.rename(draft, os.path.join(notes, "hung"))
        time.sleep(10**6)


if __name__ == "__main__":
    main(*sys.argv[1:])
