"""A stop request that all ranks see in the same step."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.ipc.control_page import ControlPage, StopRequest, now
from hpcelastic.ipc.marks import MarkKind, Source
from tests.agent.processes import eventually

LONE = """
import signal, sys
from hpcelastic.training import on_stop, should_stop, time_left, why_stop
on_stop(lambda: print("saved"))
for line in sys.stdin:
    print(should_stop(), round(time_left()) if time_left() < 1e9 else "-", why_stop() or "-", flush=True)
print(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
"""
GROUP = """
import os, sys, time, torch.distributed as dist
from hpcelastic.training import should_stop
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=3)
step = 0
while not should_stop():
    step += 1
    if rank == 2:
        time.sleep(0.002)  # they are not in step with each other
    if step % 50 == 0:
        dist.barrier()
    if step == 60 and rank == 1:
        print("here", flush=True)
print("stopped", step, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


LATE = """
import os, sys, torch.distributed as dist
from hpcelastic.training import should_stop
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=3)
if rank == 2:
    print("here", flush=True)
    sys.stdin.readline()
print(should_stop(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def control_page() -> Iterator[ControlPage]:
    made = ControlPage.make(3)
    yield made
    made.close()


def environment(control_page: ControlPage | None, rank: int = 0, world_size: int = 1) -> dict[str, str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "HPCELASTIC_ROUND": "5"}
    return {
        "PYTHONPATH": ":".join(sys.path),
        **place,
        **({"HPCELASTIC_CONTROL_PAGE": control_page.name} if control_page else {}),
    }


def start(code: str, environ: dict[str, str], *args: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, *args], env=environ, stdin=pipe, stdout=pipe, text=True)


def poll(process: "subprocess.Popen[str]") -> str:
    assert process.stdin and process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_single_worker_sees_the_request_at_its_next_poll(control_page: ControlPage) -> None:
    worker = start(LONE, environment(control_page))
    assert poll(worker) == "False - -"
    assert control_page.polled(5) and control_page.ignores_sigterm(0, 5) and not control_page.acknowledged(5)
    control_page.request_stop(StopRequest(5, now() + 1000, "n2 joins"))
    assert poll(worker) == "saved"
    assert worker.stdout and worker.stdout.readline().strip() in ("True 1000 n2 joins", "True 999 n2 joins")
    assert control_page.acknowledged(5)
    rest, _ = worker.communicate()
    assert rest == "True\n"  # SIGTERM is ignored
    marks = control_page.marks(0).read()
    assert [(mark.round, mark.kind, mark.value) for mark in marks] == [
        (5, MarkKind.STEP, 1),
        (5, MarkKind.STEP, 2),
        (5, MarkKind.STOPPING, 2),
    ]


@pytest.mark.parametrize("round", [4, 6])
def test_a_request_to_another_round_has_no_effect(round: int, control_page: ControlPage) -> None:
    control_page.request_stop(StopRequest(round, now(), "drain"))
    worker = start(LONE, environment(control_page))
    assert poll(worker) == "False - -"
    worker.communicate()


def test_outside_a_run_there_are_no_requests_and_sigterm_is_not_changed() -> None:
    worker = start(LONE, environment(None))
    assert poll(worker) == "False - -"
    assert worker.communicate()[0] == "False\n"


def test_a_scripts_own_handler_of_sigterm_is_kept(control_page: ControlPage) -> None:
    code = LONE.replace("on_stop(", "signal.signal(signal.SIGTERM, lambda *_: None)\non_stop(")
    worker = start(code, environment(control_page))
    poll(worker)
    assert not control_page.ignores_sigterm(0, 5)
    worker.communicate()


CHILDREN = """
import multiprocessing, os, signal, subprocess, sys, time
from hpcelastic.training import should_stop
should_stop()
os.kill(os.getpid(), signal.SIGTERM)
def sleep(started):
    started.set()
    time.sleep(60)
fork = multiprocessing.get_context("fork")
started = fork.Event()
forked = fork.Process(target=sleep, args=(started,))
forked.start()
started.wait()
forked.terminate()
forked.join()
code = "print(1, flush=True); import time; time.sleep(60)"
other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
other.stdout.readline()
other.terminate()
print(forked.exitcode, other.wait())
"""


def test_children_of_the_worker_can_be_ended_by_sigterm(control_page: ControlPage) -> None:
    output, _ = start(CHILDREN, environment(control_page)).communicate(timeout=60)
    assert output == "-15 -15\n"


LOADER = """
import os, signal, torch
from torch.utils.data import DataLoader
from hpcelastic.training import ignore_sigterm, should_stop
loader = DataLoader(torch.arange(1000), num_workers=1, worker_init_fn=ignore_sigterm, multiprocessing_context="fork")
batches = iter(loader)
next(batches)
should_stop()
for pid in (os.getpid(), *(worker.pid for worker in batches._workers)):
    os.kill(pid, signal.SIGTERM)  # as SLURM does
print(sum(1 for _ in batches))
"""


def test_a_data_loader_survives_sigterm(control_page: ControlPage) -> None:
    output, _ = start(LOADER, environment(control_page)).communicate(timeout=60)
    assert output == "999\n"


def test_all_ranks_stop_in_the_same_step_after_a_request_to_one(control_page: ControlPage, tmp_path: Path) -> None:
    other = ControlPage.make(3)  # the page of another node, whose agent has no request yet
    boards = [other, control_page, other]
    ranks = [start(GROUP, environment(boards[rank], rank, 3), str(tmp_path / "meet")) for rank in range(3)]
    assert ranks[1].stdout and ranks[1].stdout.readline() == "here\n"
    control_page.request_stop(StopRequest(5, now() + 60, "drain"))
    output = [worker.communicate(timeout=60)[0].split()[-2:] for worker in ranks]
    assert [word for word, _ in output] == ["stopped"] * 3
    assert len({step for _, step in output}) == 1, json.dumps(output)
    assert all(seat_board.acknowledged(5) for seat_board in (control_page, other))
    assert [worker.returncode for worker in ranks] == [0, 0, 0]
    other.close()


def test_no_rank_counts_as_one_that_polls_before_all_have_called(control_page: ControlPage, tmp_path: Path) -> None:
    """The agent of the rank that has not called would stop it at once, and the others would wait for it in vain."""
    ranks = [start(LATE, environment(control_page, rank, 3), str(tmp_path / "store")) for rank in range(3)]
    late = ranks[2]
    assert late.stdin and late.stdout
    assert late.stdout.readline() == "here\n"
    eventually(lambda: all(control_page.marks(seat).newest(5) for seat in range(2)))
    time.sleep(0.2)  # they would have polled
    assert not control_page.polled(5)
    late.stdin.write("\n")
    late.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in ranks] == ["False\n"] * 3
    assert control_page.polled(5)


def test_a_checkpoint_counts_as_progress(control_page: ControlPage, tmp_path: Path) -> None:
    code = "from hpcelastic.training import Checkpoints; c = Checkpoints('c', round=5); c.save(40, {'a': 1}); c.load()"
    subprocess.run([sys.executable, "-c", code], env=environment(control_page), cwd=tmp_path, check=True)
    assert control_page.progress() == 40
    marks = control_page.marks(0).read()
    assert [(mark.kind, mark.value) for mark in marks] == [
        (MarkKind.SAVING, 0),
        (MarkKind.SAVED, 40),
        (MarkKind.PHASE_ENDED, 0),
        (MarkKind.SOURCE, Source.DISK),
        (MarkKind.RESTORED, 40),
    ]
