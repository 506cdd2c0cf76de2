"""Workers whose processes stay when a round ends: they are parked, and resumed in the next round."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in
from tests.e2e.rounds import Run

TRAINS = """
import os, sys, threading, time
import torch, torch.distributed as dist
from pathlib import Path
from hpcelastic.training import context, publish, resumable, should_stop

begun = 0

def note(what, text=""):
    worker = context()
    path = Path(f"notes/{worker.round}.{worker.rank}.{what}")
    draft = Path(f"{path.name}.draft")  # not below notes: a test reads whole notes
    draft.write_text(text or str(os.getpid()))
    draft.rename(path)

def agree(flag):
    "Return whether any rank has the flag set."
    tensor = torch.tensor([float(flag)])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return bool(tensor.item())

def train():
    while not agree(Path("finish").exists()):
        # Long beside a collective: a process that begins to send to one that has just been killed, before gloo has
        # noticed the end of the connection, waits until the group's time-out, and is not parked.
        time.sleep(0.02)

@resumable
def main():
    global begun
    begun += 1
    dist.init_process_group("gloo")
    agree(False)
    note("up")
    step()
    dist.destroy_process_group()
    note("end", str(begun))
    return begun
"""
STEPS = "\ndef step(): train()\n\nmain()\n"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def test_the_survivors_of_a_lost_node_stay(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 3)
    before = run.pids(1)
    run.kill_node(0)
    after = run.await_round(2, 2)
    assert set(after.values()) == {before[1], before[2]}
    run.finish()
    assert {run.note("2.0.end"), run.note("2.1.end")} == {"2"}
    started = [event for event in run.events("workers started") if event["round"] == 2]
    assert [event["resumed"] for event in started] == [[event["group_rank"]] for event in started]
    assert len(run.events("workers parked")) == 2


def test_only_the_worker_that_was_killed_is_started_anew(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 2, workers=2)
    before = run.pids(1)
    os.kill(before[1], signal.SIGKILL)
    after = run.await_round(2, 4)
    assert {rank for rank in range(4) if before[rank] != after[rank]} == {1}
    run.finish()


def test_workers_stay_over_many_rounds(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 2, "--max-restarts=10")
    first = run.pids(1)
    for round in range(1, 6):
        os.kill(run.pids(round)[1], signal.SIGKILL)
        assert run.await_round(round + 1, 2)[0] == first[0]
    run.finish()
    assert run.note("6.0.end") == "6"


def test_workers_stop_at_the_end_of_a_step_and_stay_when_a_node_joins(shell: Shell) -> None:
    code = """
def step():
    while not agree(Path("finish").exists()) and not should_stop():
        time.sleep(0.002)
    note("left")

main()
"""
    run = Run(shell, TRAINS + code, 1, "--nnodes=1:2")
    (pid,) = run.pids(1).values()
    run.agents.append(run.start("n9", "--nnodes=1:2"))
    assert pid in run.await_round(2, 2).values()
    assert run.note("1.0.left")
    output = run.finish()
    assert "the workers have stopped at the end of a step" in output


@pytest.mark.slow
def test_a_worker_that_cannot_be_parked_is_started_anew(shell: Shell) -> None:
    code = """
def step():
    if context().round == 1 and context().rank == 1:
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass
    train()

main()
"""
    run = Run(shell, TRAINS + code, 3)
    before = run.pids(1)
    run.kill_node(2)
    after = run.await_round(2, 2)
    assert before[0] in after.values() and before[1] not in after.values()
    run.finish()


def test_a_worker_that_waits_for_no_peer_is_interrupted(shell: Shell) -> None:
    code = """
def step():
    if context().round == 1 and context().rank == 1:
        time.sleep(1000)
    train()

main()
"""
    run = Run(shell, TRAINS + code, 2)
    before = run.pids(1)
    os.kill(before[0], signal.SIGKILL)
    assert run.await_round(2, 2)[1] == before[1]
    run.finish()


def test_an_optimizer_step_is_not_interrupted(shell: Shell) -> None:
    code = """
class Slow(torch.optim.SGD):
    def step(self, closure=None):
        note("step begins")
        time.sleep(3)
        note("step ends")

optimizer = Slow([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

def step():
    if context().round == 1 and context().rank == 1:
        optimizer.step()
        time.sleep(1000)
    train()

main()
"""
    run = Run(shell, TRAINS + code, 2)
    before = run.pids(1)
    assert eventually(lambda: run.note("1.1.step begins"))
    os.kill(before[0], signal.SIGKILL)
    assert run.await_round(2, 2)[1] == before[1]
    assert run.note("1.1.step ends")
    run.finish()


@pytest.mark.slow
def test_an_optimizer_does_not_use_the_result_of_an_aborted_collective(shell: Shell) -> None:
    """A stand-in for NCCL: its collectives end when they are aborted, without an error, and with nonsense."""
    code = """
aborted = threading.Event()

class Stream:
    def synchronize(self):
        if context().round == 1:
            note("waits")
            aborted.wait()

def abort(group):
    note("aborted")
    aborted.set()

dist.ProcessGroup.abort = abort
torch.cuda.is_initialized = lambda: True
torch.cuda.current_stream = Stream
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=1.0)

def step():
    if context().round == 1 and context().rank == 1:
        weight.grad = torch.tensor([float("nan")])
        optimizer.step()
    train()
    note("weight", str(weight.item()))

main()
"""
    run = Run(shell, TRAINS + code, 2)
    before = run.pids(1)
    assert eventually(lambda: run.note("1.1.waits"))
    os.kill(before[0], signal.SIGKILL)
    after = run.await_round(2, 2)
    assert after[1] == before[1]
    run.finish()
    assert run.note("1.1.aborted")
    assert run.note("2.1.weight") == "0.0"


def test_the_survivors_of_a_round_whose_group_was_not_created_meet_new_workers(shell: Shell) -> None:
    begin = """
def begin():
    note("hook", sys.excepthook.__name__)
    if context().round == 2 and begun == 1:
        note("waits")
        time.sleep(1000)

@resumable
"""
    code = TRAINS.replace("@resumable\n", begin).replace("    dist.init", "    begin()\n    dist.init")
    run = Run(shell, code + STEPS, 2)
    before = run.pids(1)
    os.kill(before[1], signal.SIGKILL)
    (late,) = eventually(lambda: run.notes("2.*.waits")).values()
    os.kill(int(late), signal.SIGKILL)
    assert before[0] in run.await_round(3, 2).values()
    run.finish()
    assert set(run.notes("3.*.hook").values()) == {"excepthook"}, "torch puts a prefix before tracebacks in each round"


def test_an_exception_of_the_script_fails_at_once(shell: Shell) -> None:
    code = """
def step():
    if context().round == 1 and context().rank == 1:
        raise ValueError("no such sample")
    train()

main()
"""
    run = Run(shell, TRAINS + code, 2)
    before = run.pids(1)
    after = run.await_round(2, 2)
    assert (after[0], after[1] != before[1]) == (before[0], True)
    assert "ValueError: no such sample" in run.finish()
    assert run.events("worker ended")[0]["exit_code"] == 1


COLLECTIVE_FAILS = """
def step():
    if context().round == 1 and context().rank == 1:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    train()
"""


def test_a_failed_collective_without_a_cause_spends_a_restart(shell: Shell) -> None:
    run = Run(shell, TRAINS + COLLECTIVE_FAILS + "\nmain()\n", 2)
    assert run.await_round(2, 2) == run.pids(1)
    assert "a collective has failed" in run.finish()
    interrupted = [event for event in run.events("worker interrupted") if event["rank"] == 1]
    assert ["Connection closed by peer" in event["error"] for event in interrupted] == [True]
    assert [event["restarts"] for event in run.events("state changed")][-1] == 1


def test_a_failed_collective_in_a_child_of_a_worker_ends_the_child(shell: Shell) -> None:
    code = """
import subprocess

if "child" in sys.argv:
    main()
else:
    sys.exit(subprocess.run([sys.executable, *sys.argv, "child"]).returncode)
"""
    run = Run(shell, TRAINS + COLLECTIVE_FAILS + code, 2)
    run.await_round(2, 2)
    assert "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer" in run.finish()
    assert run.events("worker interrupted") == []


def test_what_is_left_of_an_old_round_cannot_publish(shell: Shell) -> None:
    code = """
from hpcelastic.errors import HpcElasticError

def left_over(round):
    while context().round == round:
        time.sleep(0.01)
    try:
        with publish("late"):
            note("published")
    except HpcElasticError as error:
        note("refused", str(error))

def step():
    if context().round == 1:
        threading.Thread(target=left_over, args=(1,), daemon=True).start()
        note("started")
    train()

main()
"""
    run = Run(shell, TRAINS + code, 2)
    eventually(lambda: run.note("1.0.started"))
    os.kill(run.pids(1)[1], signal.SIGKILL)
    run.await_round(2, 2)
    assert "this thread belongs to round 1, which has ended" in eventually(lambda: run.note("2.0.refused"))
    run.finish()
    assert not (shell.directory / "late").exists()


@pytest.mark.slow
def test_a_parked_worker_that_dies_is_started_anew(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 2, "--nnodes=2:2")
    before = run.pids(1)
    run.kill_node(1)
    eventually(lambda: run.events("workers parked"))
    survivor = next(pid for pid in before.values() if _exists(pid))
    os.kill(survivor, signal.SIGKILL)
    run.agents.append(run.start("n9", "--nnodes=2:2"))
    assert survivor not in run.await_round(2, 2).values()
    run.finish()


@pytest.mark.slow
def test_no_parked_worker_is_left_after_the_agent(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 2, "--nnodes=2:2")
    run.kill_node(1)
    eventually(lambda: run.events("workers parked"))
    (agent,) = run.agents
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=TIMEOUT)
    assert eventually(lambda: not shell.processes())


@pytest.mark.slow
def test_no_parked_worker_outlives_an_agent_that_is_killed(shell: Shell) -> None:
    run = Run(shell, TRAINS + STEPS, 2, "--nnodes=2:2")
    run.kill_node(1)
    eventually(lambda: run.events("workers parked"))
    run.kill_node(0)
    assert eventually(lambda: not shell.processes())


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
