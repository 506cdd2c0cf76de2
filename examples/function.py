"""Train with a function, and get its return values from every rank.

    python examples/function.py                       two agents on this machine; each acts as a node
    python examples/function.py --executor slurm      two nodes of a SLURM cluster

The run keeps a copy of the function, so the function may be defined in a script, in a notebook or in a shell. Each
worker calls it once. If a worker fails, all workers start again and call it again.
"""

import argparse

import hpcelastic


def train(lr: float, steps: int) -> dict[str, float]:
    """Fit a line to points. Each rank has different points, and all ranks return the same line."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = torch.linspace(-1, 1, 32)[rank::world_size]
    y = 3 * x + 1
    line = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([line], lr=lr)
    for step in range(1, steps + 1):
        loss = ((line[0] * x + line[1] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(line.grad)
        line.grad /= world_size
        optimizer.step()
        if step % 20 == 0:
            print(f"rank {rank}: step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
    return {"rank": rank, "slope": line[0].item(), "offset": line[1].item(), "loss": loss.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executor", choices=["local", "slurm"], default="local")
    parser.add_argument("--nodes", default="2", help="a number, or MIN..MAX")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where the run is kept; all nodes must see it")
    args = parser.parse_args()

    run = hpcelastic.submit(
        train, args.lr, args.steps, executor=args.executor, nodes=args.nodes, run__directory=args.runs
    )
    print(f"started {run.name}; it continues without this process: hpcelastic status {run.directory}", flush=True)
    for line in run.logs(rank=0, follow=True):
        print(f"  {line}", flush=True)
    for value in run.result():
        print("rank {rank}: y = {slope:.3f} x + {offset:.3f}, loss {loss:.1e}".format(**value))


if __name__ == "__main__":
    main()
