"""What a run directory tells about faults that were injected: their cause, the node at fault, and their cost."""

import json
import os
import shutil
import signal
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import JOB, Shell, eventually, shell_in
from tests.e2e.rounds import Run

TRAINS = """
import os, time
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context

torch.set_num_threads(1)
FAULT = Path("fault")

def trace(what, step):
    worker = context()
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with open(f"traces/{worker.node}.{worker.rank}", "a") as file:
        file.write(f"{worker.round} {what} {step} {now}\\n")

def train(elastic, data):
    trace("entered", elastic.step)
    model = DDP(elastic.model) if context().world_size > 1 else elastic.model
    first = True
    for step, (x,) in elastic.steps(data, last=10**9):
        trace("step", step)
        if Path("finish").exists() and step % 10 == 0:
            break
        if FAULT.exists() and context().rank == 1 and context().round == 1:
            FAULT.unlink()
            exec(os.environ["FAULT_CODE"])
        loss = model(x).sum()
        elastic.metrics["loss"] = 1 / (step + 1)
        elastic.optimizer.zero_grad()
        elastic.scale_loss(loss).backward()
        elastic.optimizer.step()
        if first:
            Path(f"notes/{context().round}.{context().rank}.up").write_text(str(os.getpid()))
            first = False
        time.sleep(0.05)

def main():
    model = torch.nn.Linear(1, 1)
    elastic = Elastic(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
                      batches=GlobalBatches(960, 12), checkpoints=Checkpoints(), save_every=40)
    elastic.run(train, torch.utils.data.TensorDataset(torch.ones(960, 1)))

main()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path / "site") as made:
        (made.directory / "traces").mkdir(parents=True)
        yield made


def copied(shell: Shell, tmp_path: Path) -> str:
    """Copy the run directory elsewhere, without any right to write, and return its path."""
    copy = tmp_path / "copy"
    shutil.copytree(shell.directory / "runs" / "r", copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return str(copy)


def told(shell: Shell, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """Return what a command prints with --json."""
    done = shell.hpcelastic(*arguments, "--json")
    assert done.returncode == status, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def fault(shell: Shell, code: str) -> None:
    """Let rank 1 of round 1 execute ``code`` in its next step."""
    shell.environ["FAULT_CODE"] = code


KINDS = {
    "exception": ("raise ValueError('bad label')", "exception", "program", "likely", "ValueError: bad label"),
    "out of memory": (
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has')",
        "cuda-out-of-memory",
        "program",
        "certain",
        "CUDA out of memory",
    ),
    "exception, and a slow end": (
        "import atexit; atexit.register(time.sleep, 3); raise ValueError('bad label')",
        "exception",
        "program",
        "likely",
        "ValueError: bad label",
    ),
    "exception, and an end that is too slow": (
        "import atexit; atexit.register(time.sleep, 60); raise ValueError('bad label')",
        "exception",
        "program",
        "likely",
        "ValueError: bad label",
    ),
    "segfault": ("import ctypes; ctypes.string_at(0)", "segmentation-fault", "program", "likely", "SIGSEGV"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_failure_of_a_worker_is_explained(shell: Shell, tmp_path: Path, kind: str) -> None:
    code, id, blame, certainty, text = KINDS[kind]
    fault(shell, code)
    run = Run(shell, TRAINS, 3, "--redirects=3")
    (shell.directory / "fault").touch()
    run.await_workers(3)
    run.finish()
    (why,) = told(shell, "why", copied(shell, tmp_path))
    assert (why["round"], why["id"], why["blame"], why["certainty"], why["rank"]) == (1, id, blame, certainty, 1)
    assert text in why["cause"]
    assert why["node"] == node_of(run, 1)
    assert why["node_seconds"] and why["stopped"] > 0


def node_of(run: Run, rank: int) -> str:
    """Return the node of a rank in round 1."""
    started = run.events("workers started")
    return next(event["node"] for event in started if event["round"] == 1 and str(rank) in event["pids"])


@pytest.mark.slow
def test_a_node_that_dies_is_at_fault_and_the_workers_that_notice_it_are_not(shell: Shell, tmp_path: Path) -> None:
    fault(shell, "")
    run = Run(shell, TRAINS, 3)
    time.sleep(0.5)
    name = run.agents[1].node_name
    run.kill_node(1)
    run.await_workers(2)
    run.finish()
    (why,) = told(shell, "why", copied(shell, tmp_path))
    assert (why["round"], why["id"], why["node"], why["blame"]) == (1, "processes-gone", name, "node")
    texts = [link["text"] for link in why["chain"]]
    assert any("refuses connections" in text for text in texts), texts
    assert texts[-1].startswith("the training continues")
    for link in why["chain"]:
        path, _, line = link["evidence"].rpartition(":")
        assert not link["evidence"] or (shell.directory / "runs/r" / path).read_text().splitlines()[int(line) - 1]


@pytest.mark.slow
def test_the_account_is_that_of_the_workers_own_traces(shell: Shell, tmp_path: Path) -> None:
    fault(shell, "os.kill(os.getpid(), 9)")
    run = Run(shell, TRAINS, 3)
    time.sleep(3.0)
    (shell.directory / "fault").touch()
    newest = run.await_workers(3)
    time.sleep(2.0)
    run.kill_node(2)
    run.await_workers(2, after=newest)
    time.sleep(2.0)
    run.finish()
    (found,) = told(shell, "goodput", copied(shell, tmp_path))
    assert sum(found["node_seconds"].values()) == pytest.approx(found["total"], abs=1e-5)
    assert len(found["faults"]) >= 2 and found["final"] and found["marked"]
    useful, redone = traced(shell.directory / "traces")
    assert found["node_seconds"]["useful"] == pytest.approx(useful, rel=0.02, abs=0.05 * 6)
    assert found["node_seconds"]["unknown"] <= 0.005 * found["total"]
    assert redone <= found["node_seconds"]["redone"] + 0.3
    written = shell.hpcelastic("report", str(tmp_path / "copy"), "-o", "r.html")
    assert written.returncode == 0, written.stderr
    report = (shell.directory / "r.html").read_text()
    assert "<h2>Loss</h2>" in report and report.count("<details>") == len(found["faults"])


def traced(traces: Path) -> tuple[float, float]:
    """Return the node time of new steps, and of steps that were made again, from the workers' own notes."""
    steps: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for path in traces.iterdir():
        for line in path.read_text().splitlines():
            round, what, step, time = line.split()
            if what == "step":
                steps[int(round), path.name].append((int(step), float(time)))
    useful, redone, furthest = 0.0, 0.0, 0
    for round in sorted({number for number, _ in steps}):
        ours = [sorted(found) for (number, _), found in steps.items() if number == round]
        for found in ours:
            for (step, begin), (_, end) in pairwise(found):
                if step >= furthest:
                    useful += end - begin
                else:
                    redone += end - begin
        furthest = max([furthest, *(found[-1][0] for found in ours)])
    return useful, redone


def test_everything_is_killed_and_the_directory_still_tells(shell: Shell, tmp_path: Path) -> None:
    fault(shell, "")
    run = Run(shell, TRAINS, 2)
    time.sleep(0.5)
    for agent in run.agents:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
    eventually(lambda: not shell.processes())
    copy = copied(shell, tmp_path)
    (why,) = told(shell, "why", copy)
    assert (why["round"], why["id"]) == (1, "runs")  # nobody has ended the round
    (found,) = told(shell, "goodput", copy)
    assert not found["final"]
    assert found["node_seconds"]["useful"] > 0 or found["node_seconds"]["unknown"] > 0
    text = shell.hpcelastic("goodput", copy)
    assert text.returncode == 0 and "goodput" in text.stdout
    long_ago = time.time() - 600
    os.utime(Path(copy, "rendezvous", "nodes"), (long_ago, long_ago))
    (why,) = told(shell, "why", copy, status=1)
    assert why["cause"] == "No agent is left, and none has told why."
    (later,) = told(shell, "goodput", copy)
    assert later["abandoned"] and later["end"] <= found["end"]


def test_a_round_that_does_not_exist_is_named(shell: Shell) -> None:
    shell.write({"train.py": "pass", "job.yaml": JOB})
    done = shell.hpcelastic("run", "job.yaml")
    assert done.returncode == 0, done.stderr
    wrong = shell.command("why", "--round", "7")
    assert wrong.returncode == 2 and "has no round 7; it has rounds 1 to 1" in wrong.stderr
    right = shell.command("why")
    assert right.returncode == 0 and "All workers have succeeded." in right.stdout
