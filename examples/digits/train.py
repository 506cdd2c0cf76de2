"""Train a small network on scikit-learn's handwritten digits, with any number of ranks and through any failure.

Runs as it is with ``python train.py``, with torchrun and with hpcelastic. An elastic agent may kill this process at any
instruction and start it again in a group of another size. Three things make that harmless:

1. The state of training is (model, optimizer, step), and it is published as a whole every few steps.
2. Which samples a step sees depends on the step alone, so the step is all there is to know about the data.
3. The gradient of a step is the mean over the global batch, however many ranks share it.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from hpcelastic.training import Checkpoints, Context, GlobalBatches, context, publish, should_stop


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="append a line of JSON to FILE for each step")
    return parser.parse_args()


def join_group(here: Context) -> torch.device:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(here.local_rank)
    if here.world_size > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    return torch.device("cuda", here.local_rank) if cuda else torch.device("cpu")


def digits(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on, images and labels to test on: 1,437 and 360, each of 8 x 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    images = torch.tensor(images / 16, dtype=torch.float32, device=device).reshape(-1, 1, 8, 8)
    labels = torch.tensor(labels, device=device)
    return images[train], labels[train], images[test], labels[test]


def network() -> nn.Module:
    # No dropout and no batch normalisation: what they do depends on how a batch is shared among the ranks.
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, batch: list[int], here: Context
) -> None:
    mine = batch[here.rank :: here.world_size]
    losses = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
    optimizer.zero_grad()
    # DistributedDataParallel takes the mean over ranks, whose shares may differ in size or be empty (and add a zero).
    # Weighted like this, it is the mean over the batch.
    (losses * here.world_size / len(batch)).backward()
    optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy."""
    scores = model(images)
    return F.cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()


@record  # tells the agent which rank failed first, and with what traceback
def main() -> None:
    args, here = arguments(), context()
    who = f"round {here.round}, {here.world_size} rank{'s' if here.world_size > 1 else ''}:"
    torch.set_num_threads(1)  # the ranks of a node share its cores
    torch.manual_seed(0)  # the same first weights on every rank, for every world size
    device = join_group(here)

    train_images, train_labels, test_images, test_labels = digits(device)
    batches = GlobalBatches(len(train_images), args.batch_size, seed=0)
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    checkpoints = Checkpoints()
    first, last, rounds = 0, args.epochs * batches.per_epoch, [here.round]
    if checkpoint := checkpoints.load(map_location=device):
        model.load_state_dict(checkpoint.state["model"])
        optimizer.load_state_dict(checkpoint.state["optimizer"])
        first, rounds = checkpoint.step, sorted({*checkpoint.state["rounds"], here.round})
        if here.rank == 0:
            print(f"{who} resumed at step {first} of {last} from {checkpoint.path.name}", flush=True)

    # The wrapper only averages gradients. What is saved is the model inside, which fits any world size.
    parallel = DistributedDataParallel(model) if here.world_size > 1 else model
    for step in range(first, last):
        train_step(parallel, optimizer, train_images, train_labels, batches.indices(step), here)
        time.sleep(args.step_time)
        done, stopping = step + 1, should_stop()  # before a preemption, say: then all ranks stop at this step
        if here.rank == 0:
            if args.trace:
                with args.trace.open("a") as trace:
                    trace.write(json.dumps({"round": here.round, "step": step, "world_size": here.world_size}) + "\n")
            if done % args.checkpoint_every == 0 or done == last or stopping:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rounds": rounds}
                checkpoints.save(done, state)
            if done % batches.per_epoch == 0:
                loss, accuracy = evaluate(model, test_images, test_labels)
                epoch = f"epoch {done // batches.per_epoch}/{args.epochs} step {done}"
                print(f"{who} {epoch} loss {loss:.3f} test accuracy {accuracy:.3f}", flush=True)
        if stopping:
            if here.rank == 0:
                print(f"{who} saved step {done} and stops", flush=True)
            break
    else:
        if here.rank == 0:
            _, accuracy = evaluate(model, test_images, test_labels)
            with publish((here.run_dir or Path()) / "result.json") as file:
                file.write(json.dumps({"test_accuracy": accuracy, "steps": last, "rounds": rounds}).encode() + b"\n")
            print(f"test accuracy {accuracy:.3f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
