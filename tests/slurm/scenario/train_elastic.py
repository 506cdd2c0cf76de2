"""The training script of the scenarios with `Elastic`: the same integers, steps and notes, and a state in memory."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hpcelastic.training import Checkpoints, Context, Elastic, context, publish, should_stop

sys.path.insert(0, str(Path(__file__).parents[3]))  # independent of launcher and environment
from tests.slurm.scenario.plan import Plan, advance, digest, first_state, share  # from that path
from tests.slurm.scenario.trace import Trace  # the same
from tests.slurm.scenario.train import agreed, total  # the same


class Values(torch.nn.Module):
    """The state of the computation, in place of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(first_state()), requires_grad=False)

    def tolist(self) -> list[int]:
        found: list[int] = self.values.tolist()
        return found


class Advance(torch.optim.Optimizer):
    """The step of the computation, in place of an optimizer's. ``added`` is the sum of the values of all ranks."""

    def __init__(self, model: Values) -> None:
        super().__init__(model.parameters(), {})
        self._model, self.added = model, first_state()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # without a closure
        self._model.values.copy_(torch.tensor(advance(self._model.tolist(), self.added)))


class NotedCheckpoints(Checkpoints):
    """Checkpoints and snapshots of which each has a note."""

    trace: Trace

    def save(self, step: int, state: dict[str, Any], **options: Any) -> Path:
        path = super().save(step, state, **options)
        self.trace.note("saved", step)
        return path

    def snapshot(self, step: int, state: dict[str, Any]) -> bool:
        self.trace.note("snapshot", step)  # before, because the agent has it even if this process is killed
        return super().snapshot(step, state)


def train(elastic: Elastic, plan: Plan, samples: list[int]) -> None:
    here = context()
    assert here.run_dir, "start it with hpcelastic"
    assert isinstance(elastic.checkpoints, NotedCheckpoints)
    trace = Trace(here.run_dir / "trace", (here.round, here.rank, here.world_size), here.node)
    elastic.checkpoints.trace = trace
    trace.note("started")
    if not (compute(elastic, plan, plan.gate, samples, trace) and may_finish(here, plan, trace)):
        trace.note("stopped", elastic.step)
    elif compute(elastic, plan, plan.steps, samples, trace) and here.rank == 0:
        with publish(here.run_dir / "result.json") as file:
            file.write(json.dumps({"digest": digest(elastic.model.tolist()), "round": here.round}).encode())
        trace.note("result", plan.steps)


def compute(elastic: Elastic, plan: Plan, last: int, samples: list[int], trace: Trace) -> bool:
    """Compute the steps before ``last``. Return False if the round must end before."""
    for step, mine in elastic.steps(samples, last=last):
        elastic.optimizer.added = total(share(elastic.model.tolist(), step, mine.tolist()))
        elastic.optimizer.step()
        trace.note("step", step)  # before any pause, so that a frozen process does not report an old step as new
        time.sleep(plan.step_time)
    return elastic.step >= last


def may_finish(here: Context, plan: Plan, trace: Trace) -> bool:
    """Wait for the permission to do the last steps. Return False if the round must end before."""
    assert here.run_dir
    while not agreed((here.run_dir / "finish").exists()):
        trace.note("waiting", plan.gate)
        time.sleep(plan.step_time)
        if should_stop():
            return False
    return True


def main() -> None:
    plan, model = Plan.parse(sys.argv[1:]), Values()
    torch.set_num_threads(1)
    elastic = Elastic(
        model=model,
        optimizer=Advance(model),
        batches=plan.batches,
        checkpoints=NotedCheckpoints(),
        save_every=plan.save_every,
    )
    elastic.run(train, plan, list(range(plan.batches.samples)))


if __name__ == "__main__":
    main()
