"""Training with `Elastic`: after any change of the world the result is that of an undisturbed training."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.protocol.state import NodeState
from hpcelastic.storage.leases import read_leases
from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run

TRAINS = """
import json, os, sys, time
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context

PAUSE, SAVE_EVERY, BUILD, LAST = (int(value) for value in sys.argv[1:5])
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(5, generator=generator), torch.randn(1, generator=generator)

def resources():
    "Return the numbers of descriptors and threads of this process, and its memory in MiB."
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), memory]

def note(what, text):
    worker = context()
    path = Path(f"notes/{worker.round}.{worker.rank}.{what}")
    path.with_suffix(".draft").write_text(text)
    path.with_suffix(".draft").rename(path)

def is_over():
    "Return whether any rank finds that the test wants the training to end."
    flag = torch.tensor([float(Path("finish").exists())])
    if context().world_size > 1:
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())

def train(elastic, data):
    model = DDP(elastic.model) if context().world_size > 1 else elastic.model
    note("from", json.dumps([elastic.step, len(elastic.state.get("losses", []))]))
    first = True
    for step, (x, y) in elastic.steps(data, last=LAST or 10**9):
        if not LAST and is_over():
            break
        loss = torch.nn.functional.mse_loss(model(x), y, reduction="sum")
        elastic.optimizer.zero_grad()
        elastic.scale_loss(loss).backward()
        elastic.optimizer.step()
        elastic.schedule.step()
        elastic.state.setdefault("losses", []).append(step)
        if first:
            note("seat", str(context().local_rank))
            note("resources", json.dumps(resources()))
            note("up", str(os.getpid()))
            first = False
        time.sleep(PAUSE / 1000)
    return elastic.step

def main():
    time.sleep(BUILD)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    elastic = Elastic(model=model, optimizer=optimizer, schedule=schedule, batches=GlobalBatches(96, 24),
                      checkpoints=Checkpoints(), save_every=SAVE_EVERY)
    done = elastic.run(train, Data())
    if context().rank == 0:
        values = [value.double().flatten().tolist() for value in model.state_dict().values()]
        Path("result.json").write_text(json.dumps([done, elastic.state["losses"], values, schedule.get_last_lr()]))

main()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def undisturbed(shell: Shell, code: str, last: int) -> object:
    """Return the result of one process that nothing disturbs."""
    directory = shell.directory / "alone"
    (directory / "notes").mkdir(parents=True)
    (directory / "train.py").write_text(code)
    # The end of Python would abort a thread of torch that still releases the last tensors.
    wait = (
        "import atexit, runpy, time; atexit.register(time.sleep, 0.1); runpy.run_path('train.py', run_name='__main__')"
    )
    arguments = [sys.executable, "-c", wait, "0", "0", "0", f"{last}"]
    subprocess.run(arguments, cwd=directory, env=shell.environ, check=True)
    return json.loads((directory / "result.json").read_text())


def check_result(shell: Shell, code: str = TRAINS) -> None:
    """Check that the run has the result of an undisturbed one with as many steps, up to rounding."""
    steps, losses, values, rate = json.loads((shell.directory / "result.json").read_text())
    alone = undisturbed(shell, code, steps)
    assert isinstance(alone, list)
    assert losses == list(range(steps))
    assert rate == pytest.approx(alone[3])
    for ours, theirs in zip(values, alone[2], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def begins(run: Run, round: int) -> dict[int, int]:
    """Return the step with which each rank began the round."""
    found = run.notes(f"{round}.*.from")
    return {rank: json.loads(text)[0] for rank, text in found.items()}


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_no_step_is_lost_with_a_node(shell: Shell, victim: int) -> None:
    check_the_loss_of_a_node(shell, TRAINS, victim)


def check_the_loss_of_a_node(shell: Shell, code: str, victim: int) -> None:
    """Check that the survivors continue in the same processes, and that no step is lost."""
    run = Run(shell, code, 3, script_arguments=("10", "0", "0", "0"))
    before = run.pids(1)
    time.sleep(0.5)
    run.kill_node(victim)
    after = run.await_round(2, 2)
    assert set(after.values()) == {pid for rank, pid in before.items() if rank != victim}
    run.finish()
    assert len(set(begins(run, 2).values())) == 1
    assert begins(run, 2)[0] > 0
    check_result(shell, code)


@pytest.mark.slow
def test_a_newcomer_receives_the_whole_state(shell: Shell) -> None:
    check_a_newcomer(shell, TRAINS)


def check_a_newcomer(shell: Shell, code: str) -> None:
    """Check that a worker in the place of a lost one continues with the state of the other."""
    run = Run(shell, code, 2, script_arguments=("10", "0", "0", "0"))
    time.sleep(0.5)
    os.kill(run.pids(1)[0], signal.SIGKILL)
    round = run.await_workers(2)
    run.finish()
    assert begins(run, round)[0] == begins(run, round)[1] > 0
    check_result(shell, code)


@pytest.mark.slow
def test_the_others_continue_while_a_worker_is_started_anew(shell: Shell) -> None:
    run = Run(shell, TRAINS, 3, script_arguments=("10", "0", "2", "0"))
    before = run.pids(1)
    os.kill(before[1], signal.SIGKILL)
    two = run.await_round(2, 2)
    three = run.await_round(3, 3)
    assert set(two.values()) == {before[0], before[2]}
    assert set(two.values()) < set(three.values())
    assert begins(run, 3)[0] > begins(run, 2)[0]
    assert [event["local_ranks"] for event in run.events("workers start early")] == [[0]]
    run.finish()
    check_result(shell)


@pytest.mark.slow
def test_a_node_that_has_lost_a_worker_continues_with_the_others(shell: Shell) -> None:
    run = Run(shell, TRAINS, 2, workers=2, script_arguments=("10", "0", "2", "0"))
    before, seats = run.pids(1), run.notes("1.*.seat")
    os.kill(before[2], signal.SIGKILL)
    three = run.await_round(2, 3)
    assert set(three.values()) == set(before.values()) - {before[2]}
    four = run.await_round(3, 4)
    run.finish()
    seat_of = {pid: seats[rank] for rank, pid in before.items()}
    for round, pids in ((2, three), (3, four)):
        now = run.notes(f"{round}.*.seat")
        assert all(now[rank] == seat_of[pid] for rank, pid in pids.items() if pid in seat_of)
    check_result(shell)


@pytest.mark.slow
def test_a_round_waits_for_a_worker_whose_node_it_needs(shell: Shell) -> None:
    run = Run(shell, TRAINS, 2, "--nnodes=2:2", script_arguments=("10", "0", "2", "0"))
    before = run.pids(1)
    os.kill(before[0], signal.SIGKILL)
    after = run.await_round(2, 2)
    assert before[1] in after.values()
    run.finish()
    check_result(shell)


@pytest.mark.slow
def test_a_node_that_joins_builds_its_model_beside_the_others(shell: Shell) -> None:
    run = Run(shell, TRAINS, 1, "--nnodes=1:2", script_arguments=("10", "0", "2", "0"))
    run.agents.append(run.start("n8", "--nnodes=1:2"))
    run.await_round(2, 2)
    run.finish()
    resumed = [event["resumed"] for event in run.events("workers started") if event["round"] == 2]
    assert sorted(resumed) == [[0], [1]]
    check_result(shell)


@pytest.mark.slow
def test_a_script_that_needs_its_round_is_started_in_the_round(shell: Shell) -> None:
    code = TRAINS.replace("    time.sleep(BUILD)\n", "    hpcelastic.training.token.check_token()\n")
    run = Run(
        shell,
        code.replace("import torch\n", "import torch, hpcelastic.training.token\n", 1),
        2,
        script_arguments=("10", "0", "0", "0"),
    )
    os.kill(run.pids(1)[0], signal.SIGKILL)
    run.await_workers(2)
    assert "before it had a place in a round" in run.finish()
    check_result(shell)


@pytest.mark.slow
def test_a_node_joins_and_no_step_is_lost(shell: Shell) -> None:
    run = Run(shell, TRAINS, 1, "--nnodes=1:3", script_arguments=("10", "0", "0", "0"))
    run.agents.append(run.start("n8", "--nnodes=1:3"))
    run.await_round(2, 2)
    run.finish()
    assert begins(run, 2)[0] == begins(run, 2)[1] > 0
    assert not list((shell.directory / "runs/r/checkpoints").glob("round-0001*"))
    check_result(shell)


@pytest.mark.slow
def test_the_disk_has_what_no_memory_has(shell: Shell) -> None:
    run = Run(shell, TRAINS, 2, script_arguments=("5", "20", "0", "0"))
    eventually(lambda: len(list((shell.directory / "runs/r/checkpoints").glob("*.pt"))) >= 2)
    for pid in run.pids(1).values():
        os.kill(pid, signal.SIGKILL)
    run.await_workers(2)
    run.finish()
    first = begins(run, 2)[0]
    assert first >= 40 and first % 20 == 0
    check_result(shell)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=[pytest.mark.weekly, pytest.mark.timeout(900)]) for seed in range(1, 50))]
)
def test_random_faults_do_not_change_the_result(shell: Shell, seed: int) -> None:
    """Workers and nodes are killed, and nodes join, in any step."""
    run = Run(shell, TRAINS, 3, "--max-restarts=100", script_arguments=("4", "50", "0", "0"))
    run.disturb(random.Random(seed), faults=8, nodes=3)
    run.finish()
    check_result(shell)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
        pytest.param(200, marks=[pytest.mark.weekly, pytest.mark.timeout(1800)]),
    ],
)
def test_a_process_does_not_grow_over_many_rounds(shell: Shell, rounds: int) -> None:
    chance = random.Random(rounds)
    run = Run(shell, TRAINS, 2, "--max-restarts=1000", script_arguments=("1", "0", "0", "0"))
    survivor = run.pids(1)[0]
    while (round := run.await_workers(2, after=0)) < rounds:
        if chance.random() < 0.9:
            hpcelastic.Run.open(shell.directory / "runs/r").checkpoint(anyway=True)
        else:
            os.kill(next(pid for pid in run.pids(round).values() if pid != survivor), signal.SIGKILL)
        eventually(lambda round=round: run.newest_round() > round)  # type: ignore[misc]
    run.finish()
    check_result(shell)
    found: list[list[float]] = []
    for number in range(1, run.newest_round() + 1):
        rank = next((rank for rank, pid in run.pids(number).items() if pid == survivor), None)
        if rank is not None and len(run.pids(number)) == 2:
            found.append(json.loads(run.note(f"{number}.{rank}.resources")))
    assert len(found) > rounds / 3
    early, late = found[len(found) // 4 : len(found) // 2], found[-len(found) // 4 :]
    for index, more in ((0, 3), (1, 2), (2, 30)):
        before, after = (statistics.median(each[index] for each in part) for part in (early, late))
        assert after <= before + more, (found[1], found[-1])


POISON = """
        poisoned = Path("poisoned")
        if poisoned.exists() and poisoned.read_text() == str(os.getpid()):
            raise RuntimeError("NCCL error: unhandled cuda error (simulated; every later call fails too)")
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_fails_in_each_round_is_started_anew(shell: Shell, rank: int) -> None:
    """Its device is in error while the process lives. No step is lost, because the other rank has the state."""
    code = TRAINS.replace("        loss =", f"{POISON}        loss =")
    run = Run(shell, code, 2, script_arguments=("10", "0", "0", "0"))
    before = run.pids(1)
    (shell.directory / "poisoned").write_text(str(before[rank]))
    last = run.await_workers(2)
    run.finish()
    assert last == 3 + rank
    assert before[rank] not in run.pids(last).values()
    assert begins(run, last) == dict.fromkeys(range(2), begins(run, 2)[rank])
    assert [event["restarts"] for event in run.events("state changed")][-1] == last - 1
    check_result(shell)


def waits(shell: Shell, name: str) -> bool:
    """Return whether all workers of a node wait for a place in a round."""
    leases = read_leases(shell.directory / "runs/r/rendezvous/nodes").values()
    ready = [lease.member for lease in leases if lease.member.node_state is NodeState.READY and lease.member.round > 0]
    return any(member.name == name and not member.starting for member in ready)


@pytest.mark.slow
def test_a_spare_has_started_before_it_is_needed(shell: Shell) -> None:
    run = Run(shell, TRAINS, 2, "--nnodes=1:2", script_arguments=("10", "0", "2", "0"))
    before = run.pids(1)
    run.agents.append(run.start("n8", "--nnodes=1:2"))
    eventually(lambda: waits(shell, "n8"))
    run.kill_node(0)
    after = run.await_workers(2)
    assert before[1] in run.pids(after).values()
    resumed = [event["resumed"] for event in run.events("workers started") if event["round"] == after]
    run.finish()
    assert sorted(resumed) == [[0], [1]]
    check_result(shell)
