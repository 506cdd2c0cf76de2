"""Training with `Elastic` on a GPU with NCCL. `make gpu` runs these tests; one GPU is enough."""

import os
import signal
import time

import pytest

from tests.cli.shell import Shell, eventually
from tests.e2e.rounds import Run
from tests.e2e.test_elastic import TRAINS, check_a_newcomer, check_result, check_the_loss_of_a_node
from tests.gpu.scripts import on_gpu

pytestmark = pytest.mark.gpu

REPLACEMENTS = {
    "torch.nn.Linear(16, 1))": "torch.nn.Linear(16, 1)).cuda()",
    "model(x), y": "model(x.cuda()), y.cuda()",
}
ON_GPU = on_gpu(TRAINS, REPLACEMENTS)
MAY_DIE = """
import signal
from hpcelastic.training import rounds

connect = rounds.connect

def connect_or_die(device):
    "Die if this process has just been started, and the test wants it."
    rounds.connect = connect
    if Path("die").exists():
        Path("die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    connect(device)

rounds.connect = connect_or_die

main()
"""
ARGUMENTS = ("10", "0", "0", "0")


@pytest.mark.parametrize("victim", [0, 2])
def test_no_step_is_lost_with_a_node(shell: Shell, victim: int) -> None:
    check_the_loss_of_a_node(shell, ON_GPU, victim)


def test_a_newcomer_receives_the_state_of_the_gpu(shell: Shell) -> None:
    check_a_newcomer(shell, ON_GPU)


def test_a_collective_that_waits_for_a_stopped_peer_is_aborted(shell: Shell) -> None:
    run = Run(shell, ON_GPU, 2, script_arguments=ARGUMENTS)
    before = run.pids(1)
    os.kill(before[1], signal.SIGSTOP)
    time.sleep(2.0)  # the other rank now waits on its GPU
    os.kill(before[1], signal.SIGKILL)
    after = run.await_workers(2)
    assert before[0] in run.pids(after).values()
    run.finish()
    check_result(shell, ON_GPU)


def test_nothing_is_left_over_many_rounds(shell: Shell) -> None:
    run = Run(shell, ON_GPU, 2, "--max-restarts=20", script_arguments=ARGUMENTS)
    survivor = run.pids(1)[0]
    for _ in range(8):
        round = run.newest_round()
        os.kill(next(pid for pid in run.pids(round).values() if pid != survivor), signal.SIGKILL)
        eventually(lambda round=round: run.newest_round() > round)  # type: ignore[misc]
        run.await_workers(2, after=round)
    assert survivor in run.pids(run.newest_round()).values()
    run.finish()
    check_result(shell, ON_GPU)


def test_a_peer_that_dies_before_it_connects(shell: Shell) -> None:
    code = on_gpu(TRAINS, {**REPLACEMENTS, "\nmain()\n": MAY_DIE})
    run = Run(shell, code, 2, script_arguments=ARGUMENTS)
    before = run.pids(1)
    (shell.directory / "die").touch()
    os.kill(before[1], signal.SIGKILL)
    after = run.await_workers(2)
    assert not (shell.directory / "die").exists()
    assert before[0] in run.pids(after).values()
    run.finish()
    check_result(shell, code)
