"""Nodes that must leave while workers train: a common last step, and faults during it."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.protocol.events import StopRequested
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import JOB, TIMEOUT, Shell, eventually, shell_in
from tests.e2e.test_local_runs import LocalRun
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import SCRIPT
from tests.slurm.scenario.trace import Note, read_trace

PLAN = Plan(save_every=1000)
"""Saves only when it is requested to stop."""

FOR_EVER = "workers.stop_grace=600"

SAVES = """
import os, signal, subprocess, sys, time
from hpcelastic.training import should_stop
rank, run = os.environ["RANK"], os.environ["HPCELASTIC_RUN_DIR"]
place = run + "/" + os.environ["HPCELASTIC_ROUND"] + "." + rank
def note(what):
    open(place + "." + what, "w").close()
def finished():
    return os.path.exists(run + "/finish")
should_stop()
"""
WAITS = """
note("up")
while not should_stop() and not finished():
    time.sleep(0.01)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"job.yaml": JOB})
        yield made


def start(shell: Shell, code: str, *overrides: str, nodes: str = "1..2") -> LocalRun:
    """Start a run of two workers and wait until they run."""
    shell.write({"saves.py": SAVES + code})
    local = LocalRun(shell, *overrides, script="saves.py", nodes=nodes)
    eventually(lambda: all(noted(local, f"1.{rank}.up") for rank in (0, 1)))
    local.await_round(1, nodes=2)
    return local


def noted(local: LocalRun, name: str) -> bool:
    return (local.directory / name).exists()


def tell_to_go(shell: Shell, node: int) -> None:
    os.kill(shell.pid_of(f"--node-name node{node}"), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["[argparse]", "[]"], ids=["forked", "fresh"])
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_must_leave_loses_no_step(node: int, preload: str, shell: Shell) -> None:
    arguments = f"entrypoint.args={PLAN.arguments}"
    local = LocalRun(shell, FOR_EVER, f"workers.preload={preload}", arguments, script=str(SCRIPT), nodes="1..2")
    eventually(lambda: any(note.progress and note.step >= 3 and note.world_size == 2 for note in notes(local)))
    tell_to_go(shell, node)
    eventually(lambda: any(note.progress and note.world_size == 1 for note in notes(local)))
    local.finish()
    steps = Counter(note.step for note in notes(local) if note.kind == "step" and note.rank == 0)
    assert steps == Counter(range(PLAN.steps))
    assert local.run.status().restarts == 0
    assert shell.processes() == {}


def notes(local: LocalRun) -> list[Note]:
    return read_trace(local.directory / "trace")


@pytest.mark.slow
def test_workers_that_do_not_stop_in_time_are_stopped(shell: Shell) -> None:
    local = start(shell, WAITS + 'note("requested")\ntime.sleep(1000)', "workers.stop_grace=1")
    local.process.send_signal(signal.SIGTERM)
    assert local.process.wait(TIMEOUT) == 143
    assert noted(local, "1.0.requested") and noted(local, "1.1.requested")
    assert shell.processes() == {}


@pytest.mark.slow
def test_a_worker_that_gets_the_stop_signal_before_its_agent_has_not_failed(shell: Shell) -> None:
    """The batch system sends the signal to all processes of a job, in any order."""
    local = LocalRun(shell, nodes="1..2")
    local.await_hello(2)
    os.kill(worker_of(local, rank=0), signal.SIGTERM)
    time.sleep(0.3)
    tell_to_go(shell, 0)
    local.await_round(2, nodes=1)
    local.finish()
    assert local.run.status().restarts == 0
    causes = [event.get("cause") for event in local.run.events() if event["event"] == "decided"]
    assert "leave" in causes and "worker" not in causes


@pytest.mark.slow
def test_a_worker_that_gets_a_stop_signal_alone_has_failed(shell: Shell) -> None:
    local = LocalRun(shell, "restarts.max=1", nodes="2")
    local.await_hello(2)
    os.kill(worker_of(local, rank=0), signal.SIGTERM)
    local.await_round(2, nodes=2)
    assert local.run.status().restarts == 1
    local.finish()


def worker_of(local: LocalRun, rank: int) -> int:
    """Return the process id of a worker of round 1."""
    started = [event["pids"] for event in local.run.events() if event["event"] == "workers started"]
    return int(next(pids[str(rank)] for pids in started if str(rank) in pids))


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_grace_period_of_the_others(shell: Shell) -> None:
    dies = 'if rank == "0" and not finished(): os.kill(os.getpid(), signal.SIGKILL)\n'
    waits = 'note("saving")\nwhile not finished(): time.sleep(0.01)\n'
    local = start(shell, WAITS + dies + waits, FOR_EVER, "restarts.max=1")
    tell_to_go(shell, 1)
    eventually(lambda: noted(local, "2.0.up"))
    local.finish()
    assert shell.processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["0", "1"], ids=["the remaining node", "the leaving node"])
def test_the_run_waits_for_a_node_that_saves_slowly(slow: str, shell: Shell) -> None:
    saves = f'if rank == "{slow}" and not finished(): time.sleep(4)\nnote("saved")'
    local = start(shell, WAITS + saves, FOR_EVER)
    tell_to_go(shell, 1)
    eventually(lambda: noted(local, "2.0.up"))
    assert noted(local, "1.0.saved") and noted(local, "1.1.saved")
    local.finish()
    assert shell.processes() == {}


MEETS = """
import torch.distributed as dist
def meet(what):
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    dist.TCPStore(*address, is_master=False, wait_for_workers=False).set(what, rank)
meet("up")
"""


@pytest.mark.slow
@pytest.mark.parametrize("goes", [False, True], ids=["a checkpoint", "the store's node leaves"])
def test_the_node_with_the_store_leaves_last(goes: bool, shell: Shell) -> None:
    saves = 'if rank == "1" and not finished():\n    time.sleep(1)\n    meet("saved")\nnote("saved")'
    local = start(shell, MEETS + WAITS + saves, FOR_EVER)
    if goes:
        tell_to_go(shell, 0)
    else:
        local.run.checkpoint(anyway=True)  # they poll, but perhaps no agent has recorded it yet
    eventually(lambda: noted(local, "2.0.up"))
    assert noted(local, "1.1.saved")
    local.finish()
    assert shell.processes() == {}


ENDS = """
note("up")
while not finished():
    time.sleep(0.01)
"""


def stopping_requested(local: LocalRun) -> bool:
    """Return whether all agents have requested that their workers stop."""
    return sum(isinstance(one.event, StopRequested) for one in read_events(RunPaths(local.directory).events)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("goes", [False, True], ids=["a checkpoint", "a node leaves"])
def test_a_training_that_succeeds_meanwhile_is_not_started_again(goes: bool, shell: Shell) -> None:
    local = start(shell, ENDS, FOR_EVER)
    if goes:
        tell_to_go(shell, 1)
    else:
        local.run.checkpoint(anyway=True)  # they poll, but perhaps no agent has recorded it yet
    eventually(lambda: stopping_requested(local))
    local.finish()
    assert local.run.status().round == 1
    assert shell.processes() == {}


LOADS = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
import torch
from torch.utils.data import DataLoader
note("up")
while not finished():
    for batch in DataLoader(range(1000), num_workers=2):
        if should_stop() or finished():
            break
        time.sleep(0.01)
    if should_stop():
        note("saved")
        break
"""


@pytest.mark.slow
def test_the_children_of_workers_are_ended_with_them(shell: Shell) -> None:
    local = start(shell, LOADS, FOR_EVER)
    local.process.send_signal(signal.SIGTERM)
    assert local.process.wait(TIMEOUT) == 143
    assert noted(local, "1.0.saved") and noted(local, "1.1.saved")
    assert shell.processes() == {}
