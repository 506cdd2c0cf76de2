"""Gradients that are accumulated over pieces of a share."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcelastic.training import Elastic, GlobalBatches, ShardedBatches
from hpcelastic.training.context import Context
from hpcelastic.training.loading import Batches

DATA = torch.utils.data.TensorDataset(torch.arange(21.0).reshape(21, 1), torch.arange(21))


class Wrapper:
    """Records whether the gradients are synchronised, as DistributedDataParallel does."""

    def __init__(self) -> None:
        self.syncs = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.syncs = False
        yield
        self.syncs = True


def pieces(batches: Batches, rank: int, world_size: int, data: Any = DATA) -> list[list[tuple[list[float], bool]]]:
    """Return the samples of each piece of each step of an epoch, and whether its gradients are synchronised."""
    model, wrapper = torch.nn.Linear(1, 1), Wrapper()
    elastic = Elastic(model=model, optimizer=torch.optim.SGD(model.parameters()), batches=batches)
    elastic._worker = Context(rank, rank, world_size, 1, "here", None)
    return [
        [(x.flatten().tolist(), wrapper.syncs) for x, _ in elastic.parts(batch, wrapper)]
        for _, batch in elastic.steps(data, last=batches.per_epoch)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_the_pieces_of_a_share_are_the_share(world_size: int, limit: int) -> None:
    """The last batch of an epoch has 1 sample, so that some shares are empty."""
    batches, divided = GlobalBatches(21, 5), GlobalBatches(21, 5, max_per_rank=limit)
    of_ranks = [pieces(divided, rank, world_size) for rank in range(world_size)]
    for rank, steps in enumerate(of_ranks):
        whole = pieces(batches, rank, world_size)
        assert [[x for piece, _ in step for x in piece] for step in steps] == [step[0][0] for step in whole]
        assert max(len(piece) for step in steps for piece, _ in step) <= limit
        assert all([syncs for _, syncs in step] == [False] * (len(step) - 1) + [True] for step in steps)
        assert steps[-1] == whole[-1]
    assert len({tuple(len(step) for step in steps) for steps in of_ranks}) == 1


def test_the_shares_of_shards_are_divided_too() -> None:
    class Shards:
        def shard(self, index: int, epoch: int, start: int) -> Iterator[tuple[torch.Tensor, int]]:
            return ((torch.tensor([10.0 * index + i]), i) for i in range(start, 4))

    found = pieces(ShardedBatches([4, 2, 4], 3, max_per_rank=2), 0, 2, Shards())
    assert found == [
        [([0.0, 1.0], False), ([2.0, 20.0], False), ([21.0, 22.0], True)],
        [([3.0, 23.0], True)],
    ]


RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from hpcelastic.training import Elastic, GlobalBatches, context

x = torch.randn(21, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)

def train(elastic):
    ddp = DDP(elastic.model) if dist.is_initialized() else None
    model = ddp or elastic.model
    for step, batch in elastic.steps(torch.utils.data.TensorDataset(x, y), last=10):
        elastic.optimizer.zero_grad()
        for inputs, labels in elastic.parts(batch, ddp):
            loss = torch.nn.functional.mse_loss(model(inputs), labels, reduction="sum")
            elastic.scale_loss(loss).backward()
        elastic.state.setdefault("gradients", []).append(elastic.model[0].weight.grad.flatten().tolist())
        elastic.optimizer.step()
    return elastic.state["gradients"]

limit, store = int(sys.argv[1]) or None, sys.argv[2]
rank, world_size = context().rank, context().world_size
if world_size > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
elastic = Elastic(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batches=GlobalBatches(21, 5, max_per_rank=limit)
)
print(json.dumps(elastic.run(train)))
if world_size > 1:
    dist.destroy_process_group()
"""


def start(tmp_path: Path, rank: int, world_size: int, limit: int) -> "subprocess.Popen[str]":
    """Start a rank that prints the gradient of each step."""
    return subprocess.Popen(
        [sys.executable, "-c", RANK, f"{limit}", str(tmp_path / "store")],
        env={**os.environ, "RANK": f"{rank}", "WORLD_SIZE": f"{world_size}"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_gradients_are_those_of_the_undivided_batch(tmp_path: Path) -> None:
    """Two ranks have DistributedDataParallel and pieces of one sample, and another one has whole batches."""
    ranks = [start(tmp_path, 0, 2, 1), start(tmp_path, 1, 2, 1), start(tmp_path, 0, 1, 0)]
    *divided, whole = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert len(whole) == 10
    for found in divided:
        for gradient, expected in zip(found, whole, strict=True):
            assert gradient == pytest.approx(expected, rel=1e-9, abs=1e-12)
