"""A state that is poisoned: training returns to an older one, and the run ends if nothing helps."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in
from tests.e2e.rounds import Run

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context

FAULT, LAST = sys.argv[1], 60
torch.set_num_threads(1)
DATA = torch.utils.data.TensorDataset(torch.randn(96, 5, generator=torch.Generator().manual_seed(1)))

def note(name, text):
    worker = context()
    path = Path(f"notes/{worker.round}.{worker.rank}.{name}")
    path.with_suffix(".draft").write_text(text)
    path.with_suffix(".draft").rename(path)

def train(elastic, data):
    model = DDP(elastic.model) if context().world_size > 1 else elastic.model
    worker = context()
    note("up", str(os.getpid()))
    note("from", str(elastic.step))
    for step, (x,) in elastic.steps(data, last=LAST):
        loss = model(x).square().sum()
        first = worker.round == 1 and worker.world_size > 1
        if FAULT == "state" and step == 25 and first:
            elastic.state["bad"] = True
        bad = {"once": first, "state": "bad" in elastic.state, "always": True}.get(FAULT, False)
        fails = bad and step == 35 and worker.rank == min(1, worker.world_size - 1)
        elastic.check(float("nan") if fails else loss)
        elastic.optimizer.zero_grad()
        elastic.scale_loss(loss).backward()
        elastic.optimizer.step()
        if FAULT == "replica" and step == 25 and first and worker.rank == 2:
            with torch.no_grad():
                elastic.model[0].weight[0, 0] += 1e-6  # a device that computes wrongly
        time.sleep(0.01)

def main():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    elastic = Elastic(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), batches=GlobalBatches(96, 24),
        checkpoints=Checkpoints(), save_every=10, check_replicas=10 if FAULT == "replica" else 0,
    )
    elastic.run(train, DATA)
    if context().rank == 0:
        Path("result.json").write_text(json.dumps([value.tolist() for value in model.parameters()]))

main()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def start(shell: Shell, fault: str) -> Run:
    return Run(shell, SCRIPT, 3, script_arguments=(fault,))


def finish(shell: Shell, run: Run) -> str:
    """Wait for the end, and compare the result with that of one process that nothing disturbs. Return the output."""
    output = run.finish()
    alone = shell.directory / "alone"
    (alone / "notes").mkdir(parents=True)
    subprocess.run([sys.executable, "../train.py", "none"], cwd=alone, env=shell.environ, check=True)
    expected, found = (json.loads((path / "result.json").read_text()) for path in (alone, shell.directory))
    for values, others in zip(expected, found, strict=True):
        assert flat(others) == pytest.approx(flat(values), rel=1e-4, abs=1e-5)
    return output


def flat(values: object) -> list[float]:
    return [each for value in values for each in flat(value)] if isinstance(values, list) else [float(str(values))]


def origins(run: Run, round: int) -> set[str]:
    """Return the steps with which the ranks of a round began."""
    return {*run.notes(f"{round}.*.from").values()}


def beginnings(run: Run) -> list[str]:
    """Return the steps with which rounds after the first began, each once. Ranks that are late join a further round."""
    return [*dict.fromkeys(step for round in range(2, run.newest_round() + 1) for step in origins(run, round))]


@pytest.mark.slow
def test_training_returns_to_the_newest_checkpoint(shell: Shell) -> None:
    run = start(shell, "once")
    before = run.await_round(1, 3)
    finish(shell, run)
    assert beginnings(run)[0] == "30"
    assert len({*before.values()} & {*run.pids(2).values()}) == 2  # the other processes stay


@pytest.mark.slow
def test_training_returns_further_if_the_checkpoint_is_poisoned(shell: Shell) -> None:
    run = start(shell, "state")
    finish(shell, run)
    assert [step for step in beginnings(run) if step in ("30", "20")] == ["30", "20"]


@pytest.mark.slow
def test_the_run_ends_if_nothing_helps(shell: Shell) -> None:
    run = start(shell, "always")
    outputs = [agent.communicate(timeout=TIMEOUT)[1] for agent in run.agents]
    assert max(agent.returncode for agent in run.agents) == 4, outputs
    reason = "the state is poisoned after 35 steps, also after 3 returns to an older one: a restart cannot help"
    assert any(reason in output for output in outputs), outputs
    assert [step for step in beginnings(run) if step in ("30", "20", "10")] == ["30", "20", "10"]
    assert "drained    n" in shell.command("status", "runs/r").stdout
    eventually(lambda: not shell.processes())


@pytest.mark.slow
def test_a_rank_whose_parameters_differ_is_replaced(shell: Shell) -> None:
    run = start(shell, "replica")
    before = run.await_round(1, 3)
    assert "rank 2 has other parameters than the other 2 after 30 steps" in finish(shell, run)
    assert beginnings(run)[0] == "30"
    assert {rank for rank, pid in before.items() if pid not in run.pids(2).values()} == {2}
