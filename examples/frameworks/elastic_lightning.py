"""Trains the model of train_lightning.py with checkpoints of hpcelastic, in the background and at any step.

With ``--sharded`` each rank has a part of the model (FSDP2).
"""

import argparse
import os
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Subset
from train_lightning import Digits, digits

from hpcelastic.training import Checkpoints, GlobalBatches, context, on_stop
from hpcelastic.training.lightning import CheckpointCallback, EpochBatches

EVERY = 20


class Steps(Digits):
    """The model, which tells how far the training is."""

    def on_train_start(self) -> None:
        if self.global_step:
            self.tell(f"resumed at step {self.global_step}")

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step % EVERY == 0:
            self.tell(f"saved step {self.global_step}")

    def on_train_epoch_end(self) -> None: ...


class Sharded(Steps):
    """The same, of which each rank has a part."""

    def configure_model(self) -> None:
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="output/lightning", metavar="DIR", help="on a filesystem of all nodes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    parser.add_argument("--sharded", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = digits()
    train = Subset(train, range(1408))  # whole batches: the mean over the ranks is then the mean over the batch
    model = (Sharded if args.sharded else Steps)(test, args.step_time)
    strategy: Strategy = DDPStrategy()
    if args.sharded:
        strategy = ModelParallelStrategy(data_parallel_size=context().world_size, tensor_parallel_size=1)
    trainer = Trainer(
        max_epochs=args.epochs,
        strategy=strategy,
        # It changes how many there are: torchrun's variables say so, and Lightning does not read them by itself.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        callbacks=[CheckpointCallback(Checkpoints(args.output), save_every=EVERY)],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    on_stop(lambda: model.tell(f"saved step {model.global_step}"))
    trainer.fit(model, EpochBatches(trainer, train, GlobalBatches(len(train), 32)))
    if trainer.is_global_zero:
        print(f"trained {trainer.current_epoch} epochs", flush=True)


if __name__ == "__main__":
    main()
