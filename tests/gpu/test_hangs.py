"""Hangs of processes that use a GPU and NCCL: the rank that the others wait for is named.

The others wait on their GPU. There the main thread is in no function of torch's collectives, and uses its processor.
"""

import signal
from pathlib import Path

import pytest

from tests.cli.shell import Shell, eventually
from tests.e2e.rounds import Run
from tests.faults.test_hangs import CULPRIT, LIMITS, SCRIPT, STEP
from tests.gpu.scripts import on_gpu

pytestmark = pytest.mark.gpu

NODES = 3
ON_GPU = on_gpu(
    SCRIPT,
    {
        'init_process_group("gloo")': 'init_process_group("nccl", device_id=torch.device("cuda:0"))',
        "dist.all_reduce(flag)": "flag = flag.cuda()\n    dist.all_reduce(flag)",
        "def step(number):": (
            "def compute_on_the_gpu():\n"
            "    torch.cuda._sleep(14 * 10**9)\n"
            "    torch.cuda.synchronize()\n\n"
            "def step(number):"
        ),
    },
)


def start(shell: Shell, fault: str, limits: str = LIMITS, *, marks: bool = True) -> Run:
    arguments = (fault, str(CULPRIT), str(STEP), "marks" if marks else "plain")
    return Run(shell, ON_GPU, NODES, "--hangs", limits, script_arguments=arguments)


@pytest.mark.parametrize(
    ("fault", "verdict", "place"),
    [("read_samples", "behind", "in read_samples"), ("stop_itself", "stopped", "stopped by a signal")],
)
def test_a_hang_is_named_and_ended(shell: Shell, fault: str, verdict: str, place: str) -> None:
    run = start(shell, fault)
    before = run.await_round(1, NODES)
    eventually(lambda: [event for event in run.events("hang examined") if event["action"] != "none"])
    round = run.await_workers(NODES)
    (event,) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert (event["verdict"], event["ranks"], event["action"]) == (verdict, [CULPRIT], "restart"), event
    assert event["certain"] and place in event["text"], event
    after = run.pids(round)
    replaced = {rank for rank, pid in after.items() if before[rank] != pid}
    assert replaced == {CULPRIT}, run.story()  # the others have stayed
    run.finish()


def test_a_script_without_marks_is_reported_with_its_flight_record(shell: Shell) -> None:
    run = start(shell, "read_samples", marks=False)
    pids = run.await_round(1, NODES)
    eventually(lambda: [event for event in run.events("hang examined") if event["action"] != "none"])
    (event,) = [event for event in run.events("hang examined") if event["action"] != "none"]
    assert (event["verdict"], event["ranks"], event["action"]) == ("behind", [CULPRIT], "report"), event
    assert "in read_samples" in event["text"]
    records = [Path(event["path"], f"flight-record-{rank:05d}.json") for rank in range(NODES)]
    eventually(lambda: all(record.exists() for record in records))
    assert all("nccl:all_reduce" in record.read_text() for record in records)
    assert run.newest_round() == 1 and run.pids(1) == pids
    for agent in run.agents:
        agent.send_signal(signal.SIGTERM)
    for agent in run.agents:
        agent.communicate(timeout=60)


def test_a_long_computation_on_the_gpu_is_no_hang(shell: Shell) -> None:
    run = start(shell, "compute_on_the_gpu", "min_limit=2,without_marks=60")
    pids = run.await_round(1, NODES)
    eventually(lambda: run.note(f"1.{CULPRIT}.steps"))
    assert {event["action"] for event in run.events("hang examined")} <= {"none"}
    assert run.newest_round() == 1 and run.pids(1) == pids
    assert "no progress" not in run.finish()
