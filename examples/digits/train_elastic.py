"""Train the same network as train.py, with the state of the training in memory.

When a node is lost, the other ranks keep their processes, their model and their optimizer, and continue with the next
step. A rank that joins receives all from them. The checkpoints are for the case that all nodes are lost.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from train import arguments, digits, evaluate, network  # the file beside this one

from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context, publish


def train(elastic: Elastic, args: argparse.Namespace, data: TensorDataset, test: tuple[Tensor, Tensor]) -> None:
    """Train in one round. Called again in the next one, in the same process."""
    here, batches = context(), elastic.batches
    who = f"round {here.round}, {here.world_size} rank{'s' if here.world_size > 1 else ''}:"
    last = args.epochs * batches.per_epoch
    elastic.state["rounds"] = sorted({*elastic.state.get("rounds", []), here.round})
    if here.rank == 0 and elastic.step:
        print(f"{who} continues at step {elastic.step} of {last}", flush=True)
    # What holds a process group is a local variable of this function.
    model = DistributedDataParallel(elastic.model) if here.world_size > 1 else elastic.model
    for step, (images, labels) in elastic.steps(data, last):
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        elastic.optimizer.zero_grad()
        elastic.scale_loss(loss).backward()  # the mean over the global batch
        elastic.optimizer.step()
        time.sleep(args.step_time)
        if here.rank == 0:
            report(elastic, args, step, who, test)
    if elastic.step < last or here.rank:
        return
    _, accuracy = evaluate(elastic.model, *test)
    with publish((here.run_dir or Path()) / "result.json") as file:
        outcome = {"test_accuracy": accuracy, "steps": last, "rounds": elastic.state["rounds"]}
        file.write(json.dumps(outcome).encode() + b"\n")
    print(f"test accuracy {accuracy:.3f}", flush=True)


def report(elastic: Elastic, args: argparse.Namespace, step: int, who: str, test: tuple[Tensor, Tensor]) -> None:
    if args.trace:
        line = {"round": context().round, "step": step, "world_size": context().world_size}
        with args.trace.open("a") as trace:
            trace.write(json.dumps(line) + "\n")
    epoch, rest = divmod(step + 1, elastic.batches.per_epoch)
    if rest == 0:
        loss, accuracy = evaluate(elastic.model, *test)
        print(
            f"{who} epoch {epoch}/{args.epochs} step {step + 1} loss {loss:.3f} test accuracy {accuracy:.3f}",
            flush=True,
        )


@record  # tells the agent which rank failed first, and with what traceback
def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # the ranks of a node share its cores
    torch.manual_seed(0)  # the same first weights on every rank, for every world size
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", context().local_rank)
        torch.cuda.set_device(device)
    images, labels, *test = digits(device)
    model = network().to(device)
    elastic = Elastic(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=args.lr),
        batches=GlobalBatches(len(images), args.batch_size, seed=0),
        checkpoints=Checkpoints(),
        save_every=args.checkpoint_every,
    )
    elastic.run(train, args, TensorDataset(images, labels), tuple(test))


if __name__ == "__main__":
    main()
