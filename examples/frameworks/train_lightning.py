"""Trains on handwritten digits with Lightning. A restart, with more or fewer ranks too, resumes from the last epoch.

Nothing in it is hpcelastic's: `torchrun` runs it too.
"""

import argparse
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningModule):
    def __init__(self, test: TensorDataset, step_time: float) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.test = test
        self.step_time = step_time

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        time.sleep(self.step_time)
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def on_train_start(self) -> None:
        if self.current_epoch:
            self.tell(f"resumed after epoch {self.current_epoch}")

    def on_train_epoch_end(self) -> None:
        self.tell(f"epoch {self.current_epoch + 1}")

    @torch.no_grad()
    def tell(self, what: str) -> None:
        images, labels = (part.to(self.device) for part in self.test.tensors)
        scores = self.network(images)  # on all ranks, each of which may have a part of the network
        loss, accuracy = F.cross_entropy(scores, labels), (scores.argmax(1) == labels).float().mean()
        if self.trainer.is_global_zero:
            where = f"{self.trainer.world_size} ranks, step {self.global_step}"
            print(f"{what}: {where}, loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)


class WholeFiles(TorchCheckpointIO):
    """A checkpoint gets its name when it is whole; Lightning may copy it there, and a node may die meanwhile."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, f"{path}.draft", storage_options)
        os.replace(f"{path}.draft", path)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels to train on, and to test on."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    train_labels, test_labels = (torch.tensor(part) for part in parts[2:])
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def main(*more: Callback) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="output/lightning", metavar="DIR", help="on a filesystem of all nodes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = digits()
    # One file, written anew after each epoch.
    checkpoints = ModelCheckpoint(args.output, filename="last", enable_version_counter=False)
    trainer = Trainer(
        max_epochs=args.epochs,
        strategy="ddp",
        # It changes how many there are: torchrun's variables say so, and Lightning does not read them by itself.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        callbacks=[checkpoints, *more],
        plugins=[WholeFiles()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # "last": from the last checkpoint, if there is one.
    trainer.fit(Digits(test, args.step_time), DataLoader(train, batch_size=32, shuffle=True), ckpt_path="last")
    if trainer.is_global_zero:
        print(f"trained {trainer.current_epoch} epochs", flush=True)


if __name__ == "__main__":
    main()
