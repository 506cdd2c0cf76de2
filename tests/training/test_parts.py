"""Gradients that are accumulated over pieces of a share."""

import json
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

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
limit = int(sys.argv[1]) or None
elastic = Elastic(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batches=GlobalBatches(21, 5, max_per_rank=limit)
)
gradients = elastic.run(train)
if context().rank == 0:
    print(json.dumps(gradients))
"""


def gradients(tmp_path: Path, world_size: int, limit: int) -> list[list[float]]:
    """Train with real ranks. Return the gradient of each step."""
    (tmp_path / "rank.py").write_text(RANK)
    output = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"),
            *(str(tmp_path / "rank.py"), str(limit)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert output.returncode == 0, output.stderr
    found: list[list[float]] = json.loads(output.stdout)
    return found


@pytest.mark.slow
def test_the_gradients_are_those_of_the_undivided_batch(tmp_path: Path) -> None:
    """Two ranks with pieces of one sample, with DistributedDataParallel, and one rank with whole batches."""
    expected = gradients(tmp_path, 1, 0)
    for found, whole in zip(gradients(tmp_path, 2, 1), expected, strict=True):
        assert found == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert len(expected) == 10
