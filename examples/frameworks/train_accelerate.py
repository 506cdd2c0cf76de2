"""Trains on handwritten digits with Accelerate. A restart, with more or fewer ranks too, resumes from the last epoch.

Nothing in it is hpcelastic's: `torchrun` and `accelerate launch` run it too.
"""

import argparse
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels to train on, and to test on."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    train_labels, test_labels = (torch.tensor(part) for part in parts[2:])
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def save(accelerator: Accelerator, output: Path, epoch: int) -> None:
    """Save all state under its epoch's name, which a directory gets when it is whole."""
    draft = output / "draft"
    if accelerator.is_main_process:
        shutil.rmtree(draft, ignore_errors=True)  # of a round that was cut off
    accelerator.wait_for_everyone()
    accelerator.save_state(str(draft))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(output / f"epoch-{epoch:04d}", ignore_errors=True)
        draft.rename(output / f"epoch-{epoch:04d}")


def load(accelerator: Accelerator, output: Path) -> int:
    """Load the newest state, and return how many epochs it has seen; one rank chooses, as all must have the same."""
    newest = [max((path.name for path in output.glob("epoch-*")), default="")]
    broadcast_object_list(newest)
    if not newest[0]:
        return 0
    accelerator.load_state(str(output / newest[0]))
    return int(newest[0].partition("-")[2])


@torch.no_grad()
def tell(accelerator: Accelerator, model: nn.Module, test: TensorDataset, what: str) -> None:
    if accelerator.is_main_process:
        images, labels = (part.to(accelerator.device) for part in test.tensors)
        scores = accelerator.unwrap_model(model)(images)
        loss, accuracy = F.cross_entropy(scores, labels), (scores.argmax(1) == labels).float().mean()
        where = f"{accelerator.num_processes} ranks"
        print(f"{what}: {where}, loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default="output/accelerate", help="on a filesystem of all nodes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    args = parser.parse_args()

    # Without a GPU, Accelerate joins the other ranks only if it is told to use processors.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    train, test = digits()
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(train, batch_size=32, shuffle=True))

    first = load(accelerator, args.output)
    if first:
        tell(accelerator, model, test, f"resumed after epoch {first}")
    for epoch in range(first + 1, args.epochs + 1):
        for images, labels in batches:
            time.sleep(args.step_time)
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
        tell(accelerator, model, test, f"epoch {epoch}")
        save(accelerator, args.output, epoch)
    accelerator.print(f"trained {args.epochs} epochs", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
