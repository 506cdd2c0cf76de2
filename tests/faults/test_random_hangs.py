"""Random hangs, each of which must be named rightly, and random healthy runs, in which none may be found."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run
from tests.faults.test_hangs import HANGS, LIMITS, SCRIPT

HEALTHY = """
import os, random, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from hpcelastic.training import Checkpoints, context, phase, resumable, should_stop

torch.set_num_threads(1)
SEED = int(sys.argv[1])

def compute(seconds):
    end = time.monotonic() + seconds
    matrix = torch.randn(200, 200)
    while time.monotonic() < end:
        matrix = torch.tanh(matrix @ matrix)

def act(chance, checkpoints, step):
    "Do what a healthy rank may do between two collectives."
    kind = chance.choice(["short", "short", "uneven", "evaluate", "announced", "save", "slow work"])
    if kind == "uneven":
        time.sleep(chance.uniform(0, 0.3))
    elif kind == "evaluate":  # not announced: it is seen to work
        compute(chance.uniform(1.2, 3.0))
    elif kind == "announced":
        with phase("evaluate"):
            time.sleep(chance.uniform(1.2, 3.0))
    elif kind == "save" and context().rank == 0:
        checkpoints.save(step, {"values": torch.zeros(1000)}, wait=chance.random() < 0.5)
    elif kind == "slow work":
        compute(chance.uniform(0.2, 0.8))

@resumable
def main():
    dist.init_process_group("gloo")
    chance, checkpoints = random.Random(f"{SEED}/{context().rank}"), Checkpoints()
    compute(1.5)  # the start is slow
    together = random.Random(SEED)
    for step in range(1, 41):
        if should_stop():
            break
        if together.random() < 0.2:  # one rank, or all, do something else
            if together.random() < 0.5 or together.randrange(context().world_size) == context().rank:
                act(chance, checkpoints, step)
        dist.all_reduce(torch.ones(1))
        if step == 2:
            Path(f"notes/{context().round}.{context().rank}.up").write_text(str(os.getpid()))
        time.sleep(0.02)
    dist.destroy_process_group()

main()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


@pytest.mark.weekly
@pytest.mark.parametrize("seed", range(100))
def test_a_random_hang_is_named_rightly(shell: Shell, seed: int) -> None:
    chance = random.Random(seed)
    nodes, workers = chance.randint(2, 3), chance.randint(1, 2)
    case, culprit, step = chance.choice(HANGS), chance.randrange(nodes * workers), chance.randint(3, 60)
    arguments = (case.fault, str(culprit), str(step), "marks")
    run = Run(shell, SCRIPT, nodes, "--hangs", LIMITS, workers=workers, script_arguments=arguments)
    eventually(lambda: [event for event in run.events("hang examined") if event["action"] != "none"])
    run.await_workers(nodes * workers)
    (event,) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert event["round"] == 1
    # Either of two ranks may be wrong; and rank 0 need not wait in its broadcast.
    if case.verdict == "mismatch" and (nodes * workers == 2 or culprit == 0):
        assert event["verdict"] == "mismatch" and event["ranks"] in ([], [culprit]), event
    else:
        assert (event["verdict"], event["ranks"]) == (case.verdict, [] if case.unnamed else [culprit]), event
    run.finish()


@pytest.mark.weekly
@pytest.mark.parametrize("seed", range(200))
def test_no_hang_is_found_in_a_healthy_run(shell: Shell, seed: int) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(seed % 3)]
    try:
        limits = "min_limit=1,without_marks=30"
        run = Run(shell, HEALTHY, 2, "--hangs", limits, workers=1 + seed % 2, script_arguments=(str(seed),))
        outputs = [agent.communicate(timeout=240)[1] for agent in run.agents]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert [agent.returncode for agent in run.agents] == [0, 0], outputs
    assert {event["action"] for event in run.events("hang examined")} <= {"none"}
    assert run.newest_round() == 1 and not any("no progress" in output for output in outputs)
