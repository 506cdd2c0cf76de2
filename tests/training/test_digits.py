"""The example, trained by real processes that are killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.training.workers import make_run

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
STEPS = 690
TIMEOUT = 300.0
"""Time limit in seconds for a few dozen steps, which take one second on an idle machine."""
CONTRACT = re.compile("RANK|WORLD_SIZE|LOCAL_RANK|MASTER_.*|TORCHELASTIC_.*|HPCELASTIC_.*|OMP_NUM_THREADS|PYTHONPATH")


def environment(**variables: object) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not CONTRACT.fullmatch(name)}
    return plain | {name: str(value) for name, value in variables.items()}


def result(directory: Path) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return outcome


def trace(directory: Path) -> list[dict[str, int]]:
    """Return the lines of the trace, except a last one that is still being written."""
    path = directory / "trace"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def torchrun(directory: Path, ranks: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
            str(TRAIN), "--trace", str(directory / "trace"), *options]  # fmt: skip


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_step(directory: Path, step: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not any(line["step"] >= step for line in trace(directory)):
        assert time.monotonic() < deadline, f"no step {step} within {TIMEOUT:g} s"
        time.sleep(0.01)


@contextmanager
def group(directory: Path, round: int, ranks: int, *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The workers of one round, with the environment of an agent. They are killed at the end of the block."""
    make_run(directory, round)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    contract = {"WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "HPCELASTIC_ROUND": round,
                "HPCELASTIC_RUN_DIR": directory, "OMP_NUM_THREADS": 1}  # fmt: skip
    command = [sys.executable, str(TRAIN), "--trace", str(directory / "trace"), *options]
    workers = [
        subprocess.Popen(
            command, env=environment(RANK=rank, LOCAL_RANK=rank, **contract), stdout=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, str(TRAIN), "--trace", "trace"]
    done = subprocess.run(command, cwd=directory, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
    assert re.search(r"^round 0, 1 rank: epoch 30/30 step 690 loss 0\.\d{3} test accuracy 0\.\d{3}$", done.stdout, re.M)
    outcome = result(directory)
    assert done.stdout.endswith(f"\ntest accuracy {outcome['test_accuracy']:.3f}\n")
    assert [line["step"] for line in trace(directory)] == list(range(STEPS))
    return outcome


def check(outcome: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    assert outcome["test_accuracy"] > 0.95
    assert abs(outcome["test_accuracy"] - undisturbed["test_accuracy"]) < 0.01
    assert outcome["steps"] == undisturbed["steps"] == STEPS


def test_training_in_a_single_process(undisturbed: dict[str, Any]) -> None:
    check(undisturbed, undisturbed)
    assert undisturbed["rounds"] == [0]


def test_a_killed_training_under_torchrun_continues_with_another_world_size(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    slowly = torchrun(tmp_path, 2, "--step-time", "0.01")
    agent = subprocess.Popen(slowly, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    try:
        wait_for_step(tmp_path, 130)
    finally:
        for pid in [*children(agent.pid), agent.pid]:  # torchrun gives each worker its own session
            os.kill(pid, signal.SIGKILL)
        agent.wait()
    reached = trace(tmp_path)[-1]["step"]
    assert reached < STEPS - 1

    done = subprocess.run(torchrun(tmp_path, 3), cwd=tmp_path, env=environment(), check=True, stdout=subprocess.PIPE)
    resumed = re.search(rb"resumed at step (\d+) of 690 from round-0000.step-(\d+).pt", done.stdout)
    assert resumed and int(resumed[1]) == int(resumed[2])
    assert reached - 20 < int(resumed[1]) <= reached + 1
    check(result(tmp_path), undisturbed)


def test_rounds_of_any_size_train_every_step_once(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    for round, ranks, stop in ((1, 3, 70), (2, 2, 190), (4, 1, 430)):
        with group(tmp_path, round, ranks, "--step-time", "0.005"):
            wait_for_step(tmp_path, stop)
    with group(tmp_path, 5, 2) as workers:
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0]

    lines = trace(tmp_path)
    firsts = [lines[0], *(now for before, now in pairwise(lines) if now["round"] > before["round"])]
    assert [(line["round"], line["world_size"]) for line in firsts] == [(1, 3), (2, 2), (4, 1), (5, 2)]
    # A round contributes its steps up to the checkpoint from which the next one starts. The other steps were lost.
    ends = [line["step"] for line in firsts[1:]] + [STEPS]
    assert all(end % 20 == 0 for end in ends[:-1])
    lineage = [
        line["step"]
        for first, end in zip(firsts, ends, strict=True)
        for line in lines
        if line["round"] == first["round"] and line["step"] < end
    ]
    assert lineage == list(range(STEPS))
    check(result(tmp_path), undisturbed)
    assert result(tmp_path)["rounds"] == [1, 2, 4, 5]


def test_with_the_state_in_memory_the_result_is_the_same(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    elastic = [sys.executable, str(TRAIN.with_name("train_elastic.py")), "--trace", "trace"]
    first = subprocess.Popen([*elastic, "--step-time", "0.005"], cwd=tmp_path, env=environment())
    try:
        wait_for_step(tmp_path, 130)
    finally:
        first.kill()
        first.wait()
    done = subprocess.run(elastic, cwd=tmp_path, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
    assert re.search(r"^round 0, 1 rank: continues at step \d+0 of 690$", done.stdout, re.M)
    check(result(tmp_path), undisturbed)


def test_a_finished_training_reports_it_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAIN), "--epochs", "1"]
    outputs = [
        subprocess.run(command, cwd=tmp_path, env=environment(), check=True, stdout=subprocess.PIPE, text=True).stdout
        for _ in range(2)
    ]
    first, again = (output.splitlines() for output in outputs)
    assert again == [
        "round 0, 1 rank: resumed at step 23 of 23 from round-0000.step-00000023.pt",
        first[-1],
    ]


def test_more_ranks_than_samples_in_a_batch(tmp_path: Path) -> None:
    with group(tmp_path, 1, 3, "--epochs", "1", "--batch-size", "2") as workers:
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert result(tmp_path)["steps"] == 719
