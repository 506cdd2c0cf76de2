"""Python on a real cluster: a notebook that dies, awaited runs, sweeps, and submitit's own executor."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic import Run, SlurmError
from tests.cli.shell import Shell, eventually, shell_in
from tests.cluster import SlurmCluster

pytestmark = pytest.mark.slow

ENDED = 120.0
"""Time limit for the end of a run in seconds. It is long, because the machine may be busy with other tests."""

NOTEBOOK = """\
import time
import hpcelastic

def train(steps):
    import os, pathlib, time
    while not pathlib.Path("finish").exists():
        time.sleep(0.02)
    return [steps, int(os.environ["RANK"])]

run = hpcelastic.submit(train, 3, nodes=2, run__name="notebook", run__directory="deep/runs", workers__per_node=1)
print("submitted", flush=True)
run.wait()
"""


def test_a_run_continues_without_its_notebook_and_is_found_by_its_name(
    desk: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shell_in(Path.cwd()) as shell:
        shell.environ |= desk.env
        notebook = shell.start("-c", NOTEBOOK)
        assert notebook.stdout and notebook.stdout.readline() == "submitted\n", notebook.communicate()
        notebook.kill()
        notebook.wait()
        elsewhere(shell, monkeypatch)
        run = Run.open("notebook")
        assert not run.status().ended
        shell.write({"finish": ""})
        found = shell.python("-c", "import hpcelastic; print(hpcelastic.Run.open('notebook').result(120))")
        assert found.stdout == "[[3, 0], [3, 1]]\n", found.stderr
    assert run.status().jobs == ("1",)


def elsewhere(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.directory / "elsewhere").mkdir()
    monkeypatch.chdir(shell.directory / "elsewhere")


def test_a_sweep_is_awaited(desk: SlurmCluster) -> None:
    def train(lr: float) -> float:
        return 2 * lr

    runs = hpcelastic.sweep(train, {"lr": [1, 2, 3]}, nodes=1, run__name="s", workers__per_node=1)

    async def main() -> list[str]:
        statuses = await asyncio.wait_for(runs, ENDED)
        return [status.phase for status in statuses]

    assert asyncio.run(main()) == ["succeeded"] * 3
    assert runs.results() == [[2], [4], [6]]
    assert [run.status().jobs for run in runs] == [("1",), ("2",), ("3",)]


def test_a_partially_refused_sweep_is_cancelled(desk: SlurmCluster) -> None:
    Path("train.py").write_text("import time; time.sleep(1000)")
    job = {"run": {"name": "s"}, "entrypoint": {"script": "train.py"}, "slurm": {"options": {"hold": True}}}
    with pytest.raises(SlurmError, match=r"s-002: sbatch refused the job: .*; s-000 to s-001 were started and are"):
        hpcelastic.sweep(job, {"slurm.partition": ["main", "main", "nowhere", "main"]})
    assert desk.job_state("1") == desk.job_state("2") == "CANCELLED"
    assert not Path("runs/s-002").exists()
    assert [run.status().phase for run in hpcelastic.Runs.open("s")] == ["closed", "closed"]


def test_watching_shows_slurms_reason_for_a_pending_job(desk: SlurmCluster, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("")
    job = {"run": {"name": "r"}, "entrypoint": {"script": "train.py"}, "slurm": {"options": {"hold": True}}}
    run = hpcelastic.submit(job)
    stop = run.on_change(lambda _status: desk.run("scontrol", "release", "1"))
    run.watch()
    stop()
    first, *_, last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("---")]
    assert "waits for nodes: 0 of at least 1 ready; SLURM job 1: " in first
    assert last.startswith("--- succeeded")


def test_submitits_own_executor(desk: SlurmCluster) -> None:
    job = {"run": {"name": "plain"}, "nodes": 2, "slurm": {"cpus_per_node": 2, "setup": ["export GREETING=hello"]}}
    executor = hpcelastic.executor(job, slurm__time="10")

    def greet(name: str) -> str:
        import os

        return f"{os.environ['GREETING']} {name} from {os.environ['SLURMD_NODENAME']}"

    submitted = executor.submit(greet, "you")
    eventually(lambda: all(submitted.task(rank).done() for rank in range(2)))
    assert sorted(submitted.results()) == ["hello you from n1", "hello you from n2"]
    assert (Path("runs/plain.submitit/slurm") / f"{submitted.job_id}_submission.sh").exists()
    deadline = time.monotonic() + ENDED
    while desk.job(submitted.job_id)["JobState"] != "COMPLETED":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert desk.job(submitted.job_id)["TimeLimit"] == "00:10:00"
    assert sys.executable in (Path("runs/plain.submitit/slurm") / f"{submitted.job_id}_submission.sh").read_text()
