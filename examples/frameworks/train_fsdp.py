"""Trains on handwritten digits with FSDP2, of which each rank keeps a part of the model; torch.distributed.checkpoint
loads what other ranks have saved, more of them or fewer.

Nothing in it is hpcelastic's: `torchrun` runs it too.
"""

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves


class Training:
    """What is saved and loaded: the model and its optimizer, each rank its own part."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def fingerprint(self) -> str:
        """The same for every world size, where the values are, to the last bit."""
        digest = hashlib.sha256()
        for value in tree_leaves(self.state_dict()):
            if isinstance(value, Tensor):
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                digest.update(whole.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


def newest(output: Path) -> tuple[int, str] | None:
    """The newest checkpoint and its step; one rank chooses, as all must have the same.

    torch.distributed.checkpoint writes ``.metadata`` when all ranks have saved their parts.
    """
    found = [(int(mark.parent.name.partition("-")[2]), str(mark.parent)) for mark in output.glob("step-*/.metadata")]
    chosen = [max(found, default=None)]
    dist.broadcast_object_list(chosen)
    return chosen[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default="output/fsdp", help="on a filesystem of all nodes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", dist.get_node_local_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(labels, device=device)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    training = Training(model, optimizer)

    first = 0
    if checkpoint := newest(args.output):
        first, path = checkpoint
        dcp.load({"training": training}, checkpoint_id=path)
        print_on(0, f"resumed at step {first}: {ranks} ranks, state {training.fingerprint()}")
    for step in range(first + 1, args.steps + 1):
        time.sleep(args.step_time)
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:96][rank::ranks]
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0 or step == args.steps:
            dcp.save({"training": training}, checkpoint_id=args.output / f"step-{step:06d}")
            print_on(0, f"saved step {step}: {ranks} ranks, state {training.fingerprint()}")
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    print_on(0, f"trained {args.steps} steps, accuracy {accuracy:.3f}")
    dist.destroy_process_group()


def print_on(rank: int, line: str) -> None:
    if dist.get_rank() == rank:
        print(line, flush=True)


if __name__ == "__main__":
    main()
