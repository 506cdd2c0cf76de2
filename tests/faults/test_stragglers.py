"""Stragglers in real runs: a rank that works longer than the others in each step is named."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from hpcelastic.training import context, resumable, should_stop

torch.set_num_threads(1)
CULPRIT, WORK, MARKS = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "marks"

class Slow(torch.autograd.Function):
    "Takes long in the backward pass."
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None

def main():
    dist.init_process_group("gloo")
    here, number = context(), 0
    model = torch.nn.Linear(10, 10)
    ddp = DistributedDataParallel(model)
    while not (MARKS and should_stop()):
        slow = here.rank == CULPRIT and Path("slow").exists()
        seconds = 0.12 if slow else 0.04
        if WORK == "backward":
            ddp(Slow.apply(torch.randn(5, 10, requires_grad=True), seconds)).sum().backward()
        else:
            time.sleep(seconds)
            ddp(torch.randn(5, 10)).sum().backward()
        number += 1
        if number == 2:
            Path(f"notes/{here.round}.{here.rank}.up").write_text(str(os.getpid()))
        flag = torch.tensor([float(Path("finish").exists())])
        dist.all_reduce(flag)
        if flag.item():
            break
    dist.destroy_process_group()

(resumable(main) if MARKS else main)()
"""

TIMES = "lease=3,margin=1,poll=0.2,last_call=1"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def start(shell: Shell, work: str, marks: str, settings: str = "", nodes: int = 3) -> Run:
    arguments = ("2", work, marks)
    flags = ("--rdzv-conf", TIMES, "--stragglers", f"threshold=1.5,{settings}")  # 3 times: the machine may be busy
    return Run(shell, SCRIPT, nodes, *flags, script_arguments=arguments)


def status(shell: Shell) -> str:
    return shell.command("status", "runs/r").stdout


def found(run: Run) -> list[dict[str, Any]]:
    return run.events("stragglers found")


@pytest.mark.slow
@pytest.mark.parametrize(("work", "marks"), [("forward", "marks"), ("forward", "plain"), ("backward", "plain")])
def test_a_slow_rank_is_named_and_withdrawn(shell: Shell, work: str, marks: str) -> None:
    run = start(shell, work, marks)
    pids = run.await_round(1, 3)
    (shell.directory / "slow").touch()
    # On a busy machine another rank may be slow for a moment.
    eventually(lambda: [event for event in found(run) if event["ranks"] == [2]])
    event = next(event for event in found(run) if event["ranks"] == [2])
    assert (event["round"], event["node"]) == (1, "n0"), event
    assert event["text"].startswith("rank 2 on n2 is ")
    eventually(lambda: "slow       rank 2 on n2 is " in status(shell))
    (shell.directory / "slow").unlink()
    eventually(lambda: found(run)[-1]["ranks"] == [])
    assert run.newest_round() == 1 and run.pids(1) == pids
    assert run.finish().count("round 1: rank 2 on n2 is ") == 1


@pytest.mark.slow
def test_the_node_of_a_straggler_is_replaced_on_request(shell: Shell) -> None:
    run = start(shell, "forward", "marks", "action=exclude")
    run.agents.append(run.start("n3", "--nnodes=1:3"))
    eventually(lambda: len([*(shell.directory / "runs/r/rendezvous/nodes").glob("n3*")]))
    os.kill(run.pids(1)[0], signal.SIGKILL)  # the next round knows that the node stands by
    round = run.await_workers(3)
    (shell.directory / "slow").touch()
    round = run.await_workers(3, after=round)
    assert [2] in [event["ranks"] for event in found(run)]
    started = [event for event in run.events("workers started") if event["round"] == round]
    assert {event["node"] for event in started} == {"n0", "n1", "n3"}
    run.agents.pop(2).communicate(timeout=60)
    run.finish()
