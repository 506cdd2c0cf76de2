"""A worker for the benchmarks that trains a small model.

``trains.py NOTES elastic|sharded|plain|torchft [BUILD [cuda]]``

``elastic`` keeps its state in memory, as does ``torchft``. ``sharded`` divides it with FSDP2, and takes a snapshot in
each step. ``plain`` saves every 50 steps, and a new process loads that. Building the model takes BUILD seconds. Each
step is noted. Times are those of the monotonic clock, which all processes of a machine share. With ``cuda`` all
processes use the first GPU, with NCCL.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, resumable

_LAST = 1_000_000
_PAUSE = 0.02
"""Seconds between two steps, as if they computed something."""

_SAVE_EVERY = 50


def main(notes: str, mode: str, build: str = "0", device: str = "cpu") -> None:
    train = resumable(_train) if mode == "sharded" else _train
    train(notes, mode, build, device)


def _train(notes: str, mode: str, build: str, device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(0)
        os.environ["NCCL_HOSTID"] = str(os.getpid())  # NCCL refuses two ranks of one host on the same GPU
    data = torch.utils.data.TensorDataset(torch.randn(600, 8, device=device), torch.randn(600, 1, device=device))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    if mode == "sharded":
        from torch.distributed.fsdp import fully_shard  # takes longer than all else, and the others do not need it

        dist.init_process_group()
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    time.sleep(float(build))
    with open(os.path.join(notes, f"{os.getpid()}.jsonl"), "a", buffering=1) as file:
        if mode in ("elastic", "sharded"):
            kept = {"checkpoints": Checkpoints(), "snapshot": 1} if mode == "sharded" else {}
            elastic = Elastic(model=model, optimizer=optimizer, batches=GlobalBatches(len(data), 60), **kept)
            elastic.run(_train_elastic, data, file, mode == "sharded")
        elif mode == "torchft":
            _train_torchft(model, optimizer, data, file)
        else:
            _train_plain(model, optimizer, data, file, os.path.join(notes, "checkpoint.pt"))


def _train_elastic(elastic: Elastic, data: Any, file: IO[str], sharded: bool) -> None:
    model = elastic.model if sharded else DistributedDataParallel(elastic.model)
    for step, (x, y) in elastic.steps(data, last=_LAST):
        elastic.optimizer.zero_grad()
        elastic.scale_loss(torch.nn.functional.mse_loss(model(x), y, reduction="sum")).backward()
        elastic.optimizer.step()
        _note(file, step)


def _train_plain(model: Any, optimizer: Any, data: Any, file: IO[str], checkpoint: str) -> None:
    dist.init_process_group()
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


def _train_torchft(model: Any, optimizer: Any, data: Any, file: IO[str]) -> None:
    """Train with torchft's own classes for replicas whose processes stay."""
    import torchft

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"group_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=30),
    )
    ddp, wrapped = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    batches, group = GlobalBatches(len(data), 60), int(os.environ["REPLICA_GROUP_ID"])
    while (step := manager.current_step()) < _LAST:
        x, y = data[batches.indices(step)[group::3]]
        wrapped.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        wrapped.step()
        rank = manager.participating_rank()
        if manager.current_step() > step and rank is not None:
            world = {"world": manager.num_participants(), "rank": rank, "round": manager._quorum_id}
            _note(file, step, world)


def _steps(data: Any, first: int) -> Iterator[tuple[int, Any]]:
    batches, rank, size = GlobalBatches(len(data), 60), dist.get_rank(), dist.get_world_size()
    for step in range(first, _LAST):
        yield step, data[batches.indices(step)[rank::size]]


def _note(file: IO[str], step: int, world: Mapping[str, int] | None = None) -> None:
    if world is None:
        round = int(os.environ.get("HPCELASTIC_ROUND", "0"))
        world = {"world": dist.get_world_size(), "rank": dist.get_rank(), "round": round}
    file.write(json.dumps({"time": time.monotonic(), "pid": os.getpid(), "step": step, **world}) + "\n")
    time.sleep(_PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
