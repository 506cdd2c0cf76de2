"""A script written for torchrun, without any knowledge of hpcelastic."""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fail-at", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        if step == args.fail_at and rank == 1:
            raise RuntimeError(f"the data of step {step} is broken")
        loss = model(torch.full((2, 4), rank + step + 1.0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weight = torch.cat([p.flatten() for p in model.parameters()]).sum().item()
    print(f"rank {rank} of {world_size}: sum {total.item():g}, weight {weight:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
