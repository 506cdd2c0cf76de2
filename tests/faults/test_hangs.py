"""Hangs in real runs: the rank that the others wait for is named, its process replaced, and the training continues.

The limits are scaled down. The script tells the test which fault it has injected where; the verdict is not told.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agent.processes import may_trace
from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run

SCRIPT = """
import ctypes, json, multiprocessing, os, queue, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from hpcelastic.training import context, phase, resumable, should_stop

torch.set_num_threads(1)
FAULT, CULPRIT, STEP, MARKS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "marks"

def note(name, text):
    worker = context()
    path = Path(f"notes/{worker.round}.{worker.rank}.{name}")
    path.with_suffix(".draft").write_text(text)
    path.with_suffix(".draft").rename(path)

def read_samples():
    time.sleep(1000)

def take_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def compute():
    while True:
        pass

def hold_the_interpreter_lock():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second call waits for ever, and no signal interrupts it
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)

def wait_in_the_kernel():
    os.mkfifo("fifo")  # the child opens it before it calls exec, and its parent cannot be interrupted meanwhile
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 99, "fifo", os.O_RDONLY, 0)])

def wait_for_a_dead_process():
    values = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(1,))
    process.start()
    values.get()

def wait_for_another_group():
    dist.all_reduce(torch.ones(1), group=GROUPS[1])
    dist.all_reduce(torch.ones(1), group=GROUPS[0])

def call_another_collective():
    dist.broadcast(torch.ones(1), 0)

def evaluate():
    end = time.monotonic() + 8
    while time.monotonic() < end:
        torch.nn.functional.relu(torch.randn(100, 100) @ torch.randn(100, 100)).sum().item()

def evaluate_in_a_phase():
    with phase("evaluate"):
        time.sleep(8)

def load_slowly():
    values = multiprocessing.get_context("fork").Queue()
    def work():
        end = time.monotonic() + 8
        while time.monotonic() < end:
            sum(range(1000))
        values.put(1)
    multiprocessing.get_context("fork").Process(target=work).start()
    values.get()

def step(number):
    if number == STEP and FAULT == "wait_for_another_group" and context().round == 1:
        if context().rank == CULPRIT:
            wait_for_another_group()
        else:
            dist.all_reduce(torch.ones(1), group=GROUPS[0])
            dist.all_reduce(torch.ones(1), group=GROUPS[1])
    if number == STEP and context().rank == CULPRIT and context().round == 1:
        note("fault", FAULT)
        globals()[FAULT]()
    flag = torch.tensor([float(Path("finish").exists())])
    dist.all_reduce(flag)
    time.sleep(0.02)
    return bool(flag.item())

def train():
    global GROUPS
    dist.init_process_group("gloo")
    GROUPS = [dist.new_group(group_desc="first"), dist.new_group(group_desc="second")]
    number = 0
    while not (MARKS and should_stop()):
        if step(number):
            break
        number += 1
        if number == STEP:
            note("up", str(os.getpid()))
        if number % 50 == 0:
            note("steps", str(number))
    dist.destroy_process_group()

(resumable(train) if MARKS else train)()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


LIMITS = "min_limit=2,without_marks=5"
CULPRIT, STEP, NODES, WORKERS = 2, 20, 3, 2


def start(shell: Shell, fault: str, limits: str = LIMITS, *, marks: bool = True) -> Run:
    arguments = (fault, str(CULPRIT), str(STEP), "marks" if marks else "plain")
    return Run(shell, SCRIPT, NODES, "--hangs", limits, workers=WORKERS, script_arguments=arguments)


@dataclass(frozen=True)
class Case:
    """A fault, and what the runtime must find."""

    fault: str
    verdict: str
    place: str
    """Part of the text of the verdict."""

    certain: bool = True
    unnamed: bool = False
    """Whether no single rank is to blame."""


HANGS = [
    Case("read_samples", "behind", "in read_samples"),
    Case("take_lock", "behind", "in take_lock"),
    Case("compute", "behind", "in compute"),
    Case("hold_the_interpreter_lock", "behind", "in hold_the_interpreter_lock"),
    Case("stop_itself", "stopped", "stopped by a signal"),
    Case("wait_in_the_kernel", "behind", "blocked in the kernel"),
    Case("wait_for_a_dead_process", "behind", "in wait_for_a_dead_process"),
    Case("wait_for_another_group", "deadlock", "wait for each other", unnamed=True),
    Case("call_another_collective", "mismatch", "rank 2 in broadcast"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", HANGS, ids=lambda case: case.fault)
def test_a_hang_is_named_and_ended(shell: Shell, case: Case) -> None:
    run = start(shell, case.fault)
    before = run.await_round(1, NODES * WORKERS)
    eventually(lambda: [event for event in run.events("hang examined") if event["action"] != "none"])
    round = run.await_workers(NODES * WORKERS)
    (event, *further) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert not further, (event, further)
    assert (event["verdict"], event["round"], event["action"]) == (case.verdict, 1, "restart"), event
    assert case.place in event["text"]
    if not case.unnamed:
        assert event["ranks"] == [CULPRIT] and event["certain"] == case.certain, event
        assert run.replaced(before, round) == {CULPRIT}, run.story()  # the others have stayed
    directory = Path(event["path"])
    assert case.place in (directory / "verdict.txt").read_text()
    assert sorted(path.name for path in directory.glob("n*.json")) == ["n0.json", "n1.json", "n2.json"]
    if case.fault == "read_samples":
        native = directory / f"native-stacks-{CULPRIT:05d}.txt"
        assert ("nanosleep (libc" in native.read_text()) == may_trace()
    output = run.finish()
    assert output.count(f"no progress in round 1: {event['text']}; the round ends") == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["evaluate", "evaluate_in_a_phase", "load_slowly"])
def test_slow_work_is_no_hang(shell: Shell, fault: str) -> None:
    run = start(shell, fault, "min_limit=2,without_marks=60")
    pids = run.await_round(1, NODES * WORKERS)
    eventually(lambda: run.note(f"1.{CULPRIT}.steps"))
    assert {event["action"] for event in run.events("hang examined")} <= {"none"}
    assert run.newest_round() == 1 and run.pids(1) == pids
    assert "no progress" not in run.finish()


@pytest.mark.slow
def test_a_script_without_marks_is_reported(shell: Shell) -> None:
    run = start(shell, "read_samples", marks=False)
    pids = run.await_round(1, NODES * WORKERS)
    eventually(lambda: [event for event in run.events("hang examined") if event["action"] != "none"])
    time.sleep(2.0)
    (event,) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert (event["verdict"], event["ranks"], event["action"]) == ("behind", [CULPRIT], "report")
    assert "in read_samples" in event["text"]
    records = [Path(event["path"], f"flight-record-{rank:05d}.json") for rank in range(NODES * WORKERS)]
    eventually(lambda: all(record.exists() for record in records))
    assert all("gloo:all_reduce" in record.read_text() for record in records)
    assert run.newest_round() == 1 and run.pids(1) == pids
    for agent in run.agents:
        agent.send_signal(signal.SIGTERM)
    outputs = [agent.communicate(timeout=60)[1] for agent in run.agents]
    assert sum(output.count("no progress in round 1: rank 2 on n1 has not entered") for output in outputs) == 1
    eventually(lambda: not shell.processes())


@pytest.mark.slow
def test_the_node_of_the_rank_is_excluded_on_request(shell: Shell) -> None:
    run = start(shell, "read_samples", f"{LIMITS},action=exclude")
    run.await_round(1, NODES * WORKERS)
    run.await_workers((NODES - 1) * WORKERS)
    (event,) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert (event["ranks"], event["action"]) == ([CULPRIT], "exclude")
    assert len(run.members()) == NODES - 1
    run.finish()


@pytest.mark.slow
def test_a_suspended_machine_is_no_hang(shell: Shell) -> None:
    """All processes are stopped for longer than the limit, as those of a laptop are."""
    run = Run(
        shell, SCRIPT, 1, "--hangs", LIMITS, "--rdzv-conf", "lease=60,margin=1,poll=0.05,last_call=1",
        workers=2, script_arguments=("evaluate", "9", str(STEP), "marks"),
    )  # fmt: skip
    run.await_round(1, 2)
    pids = [pid for pid in shell.processes() if pid != os.getpid()]
    for _ in range(3):
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, signum)
            time.sleep(2.5 if signum == signal.SIGSTOP else 0.3)
    assert not [event for event in run.events("hang examined") if event["action"] != "none"]
    assert run.newest_round() == 1
    run.finish()
