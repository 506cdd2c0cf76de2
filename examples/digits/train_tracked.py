"""Train as train_elastic.py, and log the loss of each step to the tracker that the variable TRACKER names."""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from trackers import TRACKERS, Tracker
from train import arguments, digits, network  # the file beside this one

from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context

RECENT = 100
"""Steps whose losses are a part of the state, and so on every node."""


@contextmanager
def opened() -> Iterator[Tracker | None]:
    """Provide the tracker on rank 0, and None on the others."""
    here = context()
    if here.rank:
        yield None
        return
    directory = here.run_dir or Path()
    tracker = TRACKERS[os.environ["TRACKER"]](directory, directory.name)
    try:
        yield tracker
    finally:
        tracker.close()


def log(tracker: Tracker | None, losses: list[tuple[int, float]]) -> None:
    """Log the steps that the tracker does not have yet."""
    for step, loss in losses:
        if tracker is not None and step > tracker.last_step:
            tracker.log(step, loss)
            tracker.last_step = step


def train(elastic: Elastic, args: argparse.Namespace, data: TensorDataset) -> None:
    """Train in one round. Called again in the next one, in the same process."""
    last = args.epochs * elastic.batches.per_epoch
    model = DistributedDataParallel(elastic.model) if context().world_size > 1 else elastic.model
    with opened() as tracker:
        log(tracker, elastic.state.get("losses", []))  # what the last rank 0 has not logged any more
        for step, (images, labels) in elastic.steps(data, last):
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            elastic.optimizer.zero_grad()
            elastic.scale_loss(loss).backward()
            elastic.optimizer.step()
            mean = torch.stack([loss.detach(), torch.tensor(float(len(labels)))])
            if context().world_size > 1:
                dist.all_reduce(mean)
            losses = [*elastic.state.get("losses", []), (step + 1, float(mean[0] / mean[1]))]
            elastic.state["losses"] = losses[-RECENT:]
            log(tracker, losses[-1:])
            time.sleep(args.step_time)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels, *_ = digits(torch.device("cpu"))
    model = network()
    elastic = Elastic(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=args.lr),
        batches=GlobalBatches(len(images), args.batch_size, seed=0),
        checkpoints=Checkpoints(),
        save_every=args.checkpoint_every,
    )
    elastic.run(train, args, TensorDataset(images, labels))


if __name__ == "__main__":
    main()
