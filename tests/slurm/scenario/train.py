"""The training script of the scenarios: integers, quick steps, and a note for each action."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpcelastic.training import Checkpoints, Context, context, publish, should_stop

sys.path.insert(0, str(Path(__file__).parents[3]))  # independent of launcher and environment
from tests.slurm.scenario.plan import Plan, advance, digest, first_state, share  # from that path
from tests.slurm.scenario.trace import Trace  # the same


def main() -> None:
    here, plan = context(), Plan.parse(sys.argv[1:])
    assert here.run_dir, "start it with hpcelastic"
    trace = Trace(here.run_dir / "trace", (here.round, here.rank, here.world_size), here.node)
    trace.note("started")
    torch.set_num_threads(1)
    if here.world_size > 1:
        dist.init_process_group("gloo")
    train(plan, here, trace, here.run_dir)
    if dist.is_initialized():
        dist.destroy_process_group()


def train(plan: Plan, here: Context, trace: Trace, directory: Path) -> None:
    checkpoints = Checkpoints()
    found = checkpoints.load()
    first, state = (found.step, found.state["state"].tolist()) if found else (0, first_state())

    def save(done: int) -> None:
        if here.rank == 0:
            checkpoints.save(done, {"state": torch.tensor(state)})
            trace.note("saved", done)

    def leave(done: int) -> bool:
        """Return whether the round must end here. If so, save the state."""
        if stopping := should_stop():
            save(done)
            trace.note("stopped", done)
        return stopping

    for step in range(first, plan.steps):
        while step == plan.gate and not agreed((directory / "finish").exists()):
            trace.note("waiting", step)
            time.sleep(plan.step_time)
            if leave(step):
                return
        state = advance(state, total(share(state, step, plan.batches.indices(step)[here.rank :: here.world_size])))
        trace.note("step", step)  # before any pause, so that a frozen process does not report an old step as new
        time.sleep(plan.step_time)
        if (step + 1) % plan.save_every == 0:
            save(step + 1)
        if leave(step + 1):
            return
    if here.rank == 0:
        with publish(directory / "result.json") as file:
            file.write(json.dumps({"digest": digest(state), "round": here.round}).encode())
        trace.note("result", plan.steps)


def total(mine: list[int]) -> list[int]:
    """Return the sum of the values of all ranks."""
    added = torch.tensor(mine)
    if dist.is_initialized():
        dist.all_reduce(added)
    summed: list[int] = added.tolist()
    return summed


def agreed(mine: bool) -> bool:
    """Return whether the value is true on every rank."""
    return total([int(not mine)]) == [0]


if __name__ == "__main__":
    main()
