"""The sbatch templates on a real cluster, with a line or two edited as a user would."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcelastic.api.run import Run
from hpcelastic.storage.paths import RunPaths
from tests.cluster import SlurmCluster
from tests.cluster.presets import PREEMPTION

ROOT = Path(__file__).parents[2]
ENDED = 180.0
"""Time limit for the end of a job in seconds. It is long, because the machine may be busy with other tests."""

DIGITS = "COMMAND=(examples/digits/train.py --epochs 8 --step-time 0.03 --checkpoint-every 10)"
QUICK = "COMMAND=(quick.py --greeting 'hello world')"
QUICK_SCRIPT = "import os, sys; print(*sys.argv[1:], os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
WAITING = "COMMAND=(waiting.py)"
WAITING_SCRIPT = """\
import os, pathlib, time
print("round", os.environ["HPCELASTIC_ROUND"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not pathlib.Path("finish").exists():
    time.sleep(0.1)
"""
AGAIN = r"[1-9]\d*"
SAVING = "COMMAND=(saving.py)"
SAVING_SCRIPT = """\
import os, pathlib, time
from hpcelastic.training import should_stop, why_stop
saved, rank = pathlib.Path("saved"), os.environ["RANK"]
step = int(saved.read_text()) if saved.exists() else 0
should_stop()  # from the first call on, the agent sends requests to this worker
print("round", os.environ["HPCELASTIC_ROUND"], "rank", rank, "of", os.environ["WORLD_SIZE"], "from", step, flush=True)
while not pathlib.Path("finish").exists():
    step += 1
    time.sleep(0.05)
    if should_stop():
        if rank == "0":
            saved.write_text(str(step))
        print("rank", rank, "saves:", why_stop(), flush=True)
        break
"""
FAKE_APPTAINER = """\
#!/bin/bash
# Starts the command as apptainer does, in an image without SLURM, and tells how it was called.
echo "$*" >>calls
[ "$1" = exec ] || exit 9
while [ "$1" != image.sif ]; do shift || exit 9; done
shift
export PATH={python}
exec "$@"
"""
JOB = """\
run: {name: job}
entrypoint: {script: waiting.py}
nodes: 2..3
slurm: {exclude: "n[3-4]"}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Desk:
    """A user's directory that all nodes share, with copies of the templates. hpcelastic is in PATH."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.path = cluster.path / "work"
        self.path.mkdir()
        for name in ("examples", "configs"):
            (self.path / name).symlink_to(ROOT / name)
        (self.path / "quick.py").write_text(QUICK_SCRIPT)
        (self.path / "waiting.py").write_text(WAITING_SCRIPT)
        (self.path / "saving.py").write_text(SAVING_SCRIPT)
        python, ours = Path(sys.executable).parent, self.path / "bin"
        ours.mkdir()
        (ours / "apptainer").write_text(FAKE_APPTAINER.format(python=python))
        (ours / "apptainer").chmod(0o755)
        self._environ = {**cluster.env, "PATH": f"{ours}:{python}:{cluster.env['PATH']}"}

    def template(self, name: str, **edits: str) -> str:
        """Return a copy of a template in which the line that begins with a word and "=" is replaced."""
        text = (ROOT / "slurm" / name).read_text()
        for word, line in edits.items():
            text, count = re.subn(rf"^{word}=.*$", lambda _, line=line: line, text, flags=re.MULTILINE)
            assert count == 1, f"{name} has {count} lines {word}=..."
        (self.path / name).write_text(text)
        return name

    def run(self, *command: str, **environ: str) -> str:
        """Return the output of a command, from both streams."""
        done = subprocess.run(
            command, cwd=self.path, env={**self._environ, **environ}, capture_output=True, text=True, timeout=ENDED
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def sbatch(self, *words: str, **environ: str) -> str:
        return self.run("sbatch", "--parsable", *words, **environ).strip()

    def log(self, job: str) -> str:
        """Return the output of a job, or of all jobs of an array."""
        logs = [path for form in (f"*-{job}.log", f"*-{job}_*.log") for path in sorted(self.path.glob(form))]
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def until(self, what: str, look: Callable[[], object], job: str) -> None:
        deadline = time.monotonic() + ENDED
        while not look():
            assert time.monotonic() < deadline, f"waited {ENDED:g} s for {what}:\n{self.log(job)}"
            time.sleep(0.1)

    def until_logged(self, job: str, pattern: str) -> None:
        self.until(pattern, lambda: re.search(pattern, self.log(job)), job)

    def until_trained(self, job: str, ranks: int, start: str) -> None:
        """Wait until all ranks of a round of the saving script have begun at a step of this pattern."""
        for rank in range(ranks):
            self.until_logged(job, rf"rank {rank} of {ranks} from {start}\b")

    def until_requeued(self, job: str) -> None:
        self.until("a requeue", lambda: self.cluster.job(job)["Restarts"] == "1", job)

    def finish(self) -> None:
        """Let the waiting script end."""
        (self.path / "finish").touch()


@pytest.fixture
def desk(cluster: SlurmCluster) -> Desk:
    return Desk(cluster)


@pytest.fixture
def busy_desk(fresh_cluster: Callable[..., SlurmCluster]) -> Desk:
    """A user's directory on a cluster that has a partition for more urgent jobs."""
    return Desk(fresh_cluster(nodes=4, extra_conf=PREEMPTION))


def check_success(desk: Desk, run: Run, jobs: str | list[str], world_size: int) -> None:
    """Check that the jobs and the run have succeeded, and that no process of it is left on any node."""
    jobs = [jobs] if isinstance(jobs, str) else jobs
    for job in jobs:
        desk.cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    status = run.status()
    decided = [(each["phase"], each["reason"]) for each in run.events() if each["event"] == "decided"]
    assert (status.phase, status.world_size, status.restarts) == ("succeeded", world_size, 0), decided
    alive = [node for node in range(1, 5) if desk.cluster.node_running(node)]
    desk.until("no process left", lambda: not any(desk.cluster.user_pids(node) for node in alive), jobs[0])


def test_every_template_is_started_by_a_test() -> None:
    templates = {path.name for path in (ROOT / "slurm").iterdir()}
    assert templates == set(re.findall(r'desk\.template\("([\w.-]+)"', Path(__file__).read_text()))


@pytest.mark.parametrize("template", sorted(path.name for path in (ROOT / "slurm").iterdir()))
def test_the_agent_knows_the_warning_time_of_its_job(template: str) -> None:
    text = (ROOT / "slurm" / template).read_text()
    asked, told = (
        re.findall(r"^#SBATCH --signal=USR2@(\d+)$", text, re.MULTILINE),
        re.findall(r"--warning (\d+)", text),
    )
    assert (asked, told) == (["120"], ["120"])


@pytest.mark.parametrize("template", sorted(path.name for path in (ROOT / "slurm").iterdir()))
def test_a_template_requests_processors_and_shows_how_to_request_gpus(template: str) -> None:
    text = (ROOT / "slurm" / template).read_text()
    assert re.findall(r"^#SBATCH --cpus-per-task=\d+$", text, re.MULTILINE)
    assert re.findall(r"^##SBATCH --gpus-per-node=\d+$", text, re.MULTILINE)
    assert '--cpus-per-task="$SLURM_CPUS_PER_TASK"' in text, "the step repeats the request"


@pytest.mark.parametrize("template", sorted({path.name for path in (ROOT / "slurm").iterdir()} - {"agent.sbatch"}))
def test_the_last_lines_name_the_files_of_the_agent(template: str) -> None:
    text, paths = (ROOT / "slurm" / template).read_text(), RunPaths(Path("run"))
    found = dict(re.findall(r'^(id|request|success)="(.*)"$', text, re.MULTILINE))
    assert found.pop("id") == "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
    for variable, value in {"$RUNS/$RUN": "run", "$RUN_DIR": "run", "$id": "7.2"}.items():
        found = {name: words.replace(variable, value) for name, words in found.items()}
    assert found == {"request": str(paths.requeue_request("7", 2)), "success": str(paths.success("7", 2))}


def test_all_templates_requeue_their_job_in_the_same_way() -> None:
    texts = [path.read_text() for path in (ROOT / "slurm").glob("*.sbatch")]
    last_lines = [text.partition('if [ -e "$request" ]; then')[2] for text in texts]
    assert len({lines for lines in last_lines if lines}) == 1
    assert last_lines.count("") == 1, "agent.sbatch has no such lines"


def test_the_shortest_template(desk: Desk) -> None:
    job = desk.sbatch(desk.template("agent.sbatch"))
    desk.until_logged(job, "2 ranks: epoch 30/30")
    run = Run(desk.path / "runs" / f"job-{job}")
    check_success(desk, run, job, world_size=2)
    (success,) = re.findall(r'^success="(.*)"$', (desk.path / "agent.sbatch").read_text(), re.MULTILINE)
    success = success.replace("$SLURM_JOB_ID", job).replace("${SLURM_RESTART_COUNT:-0}", "0")
    assert (desk.path / success).exists()


def test_allocation_survives_the_death_of_a_node(desk: Desk) -> None:
    job = desk.sbatch(desk.template("allocation.sbatch", COMMAND=DIGITS))
    desk.until_logged(job, ", 4 ranks: epoch ")
    desk.cluster.fail_node(3)
    run = Run(desk.path / "runs" / f"job-{job}")
    check_success(desk, run, job, world_size=3)
    assert ", 3 ranks: resumed at step" in desk.log(job)
    assert json.loads((run.directory / "result.json").read_text())["test_accuracy"] > 0.9


def test_allocation_continues_after_a_requeue(desk: Desk) -> None:
    job = desk.sbatch(desk.template("allocation.sbatch", COMMAND=WAITING))
    desk.until_logged(job, "round 1 rank 3 of 4")
    desk.cluster.run("scontrol", "requeue", job)
    desk.cluster.start_now(job)
    desk.until_logged(job, "round [2-9] rank 3 of 4")
    desk.finish()
    check_success(desk, Run(desk.path / "runs" / f"job-{job}"), job, world_size=4)
    assert "round 1 rank 3 of 4" in desk.log(job)


def test_allocation_runs_in_a_terminal_too(desk: Desk) -> None:
    template = desk.template("allocation.sbatch", COMMAND=QUICK)
    printed = desk.run("salloc", "--nodes=2-4", "--no-kill", "bash", template, RUN="first")
    assert all(f"--greeting hello world {rank} of 4" in printed for rank in range(4))
    logs = list(Run(desk.path / "runs" / "first").logs(rank=3))
    assert logs == ["[1.3] --greeting hello world 3 of 4"]


def test_another_allocation_adds_a_node(desk: Desk) -> None:
    template = desk.template("allocation.sbatch", COMMAND=WAITING)
    first = desk.sbatch("--nodes=2", template)
    desk.until_logged(first, "round 1 rank 1 of 2")
    second = desk.sbatch("--nodes=1", "--exclusive", template, RUN=f"job-{first}")
    desk.until_logged(second, "round 2 rank 2 of 3")
    desk.finish()
    check_success(desk, Run(desk.path / "runs" / f"job-{first}"), first, world_size=3)
    desk.cluster.wait_job(second, "COMPLETED", timeout=ENDED)


def test_join_adds_nodes_to_a_submitted_run(desk: Desk) -> None:
    (desk.path / "job.yaml").write_text(JOB)
    desk.run("hpcelastic", "submit", "job.yaml")
    run = Run(desk.path / "runs" / "job")
    (first,) = run.status().jobs
    desk.until("two ranks", lambda: len(list(run.logs(round=1))) == 2, first)
    second = desk.sbatch(desk.template("join.sbatch"), "runs/job")
    desk.until("three ranks", lambda: len(list(run.logs(round=2))) == 3, first)
    desk.finish()
    check_success(desk, run, first, world_size=3)
    desk.cluster.wait_job(second, "COMPLETED", timeout=ENDED)
    late = desk.sbatch("join.sbatch", "runs/job")
    desk.cluster.wait_job(late, "COMPLETED", timeout=ENDED)
    assert "the run has succeeded already" in desk.log(late)


def test_allocation_saves_and_continues_after_a_preemption_with_grace(busy_desk: Desk) -> None:
    desk = busy_desk
    job = desk.sbatch("--partition=graceful", desk.template("allocation.sbatch", COMMAND=SAVING))
    desk.until_trained(job, 4, "0")
    urgent = desk.cluster.submit("sleep 1", "--partition=high", "--nodes=4", "--exclusive")
    desk.until_logged(job, "rank 0 saves: .*SLURM preempts the job")
    desk.cluster.wait_job(urgent, "COMPLETED", timeout=ENDED)
    desk.until_trained(job, 4, AGAIN)
    desk.finish()
    check_success(desk, Run(desk.path / "runs" / f"job-{job}"), job, world_size=4)
    assert desk.cluster.job(job)["Restarts"] == "1"


def test_pool_trains_with_all_jobs_of_its_array(desk: Desk) -> None:
    array = desk.sbatch(desk.template("pool.sbatch", COMMAND=WAITING))
    desk.until_logged(array, "rank 3 of 4")
    desk.finish()
    elements = [f"{array}_{index}" for index in range(4)]
    check_success(desk, Run(desk.path / "runs" / f"job-{array}"), elements, world_size=4)
    assert {path.name for path in desk.path.glob("pool-*.log")} == {f"pool-{element}.log" for element in elements}


def test_a_preempted_job_of_a_pool_saves_and_returns(busy_desk: Desk) -> None:
    desk = busy_desk
    template = desk.template("pool-preemptible.sbatch", COMMAND=SAVING)
    array = desk.sbatch("--partition=graceful", "--exclusive", template)
    desk.until_trained(array, 4, "0")
    node = desk.cluster.job(f"{array}_2")["NodeList"]
    urgent = desk.cluster.submit("sleep 1000", "--partition=high", "--exclusive", f"--nodelist={node}")
    desk.until_trained(array, 3, AGAIN)
    desk.until_requeued(f"{array}_2")
    desk.cluster.run("scancel", urgent)
    desk.until_trained(array, 4, AGAIN)
    desk.finish()
    elements = [f"{array}_{index}" for index in range(4)]
    check_success(desk, Run(desk.path / "runs" / f"job-{array}"), elements, world_size=4)


def test_chain_continues_after_its_time_limit(desk: Desk) -> None:
    template = desk.template("chain.sbatch", COMMAND=SAVING, TOTAL_TIME="TOTAL_TIME=10")
    job = desk.sbatch("--time=2", "--signal=USR2@110", template)
    desk.until_logged(job, "rank 0 saves: .*the time limit is near")
    desk.cluster.lift_limit(job)
    desk.until_trained(job, 4, AGAIN)
    desk.finish()
    check_success(desk, Run(desk.path / "runs" / f"job-{job}"), job, world_size=4)
    assert desk.cluster.job(job)["Restarts"] == "1"


def test_the_batch_script_requeues_the_job_of_a_container(desk: Desk) -> None:
    job = desk.sbatch("--nodes=2", desk.template("container.sbatch", COMMAND=SAVING))
    desk.until_trained(job, 2, "0")
    desk.cluster.run("scancel", "--signal=USR2", job)
    desk.until_logged(job, "scontrol: not found.*; left to the batch script")
    desk.until_trained(job, 2, AGAIN)
    desk.finish()
    check_success(desk, Run(desk.path / "runs" / f"job-{job}"), job, world_size=2)
    here = desk.path
    called = f"exec --bind {here} --bind {here}/runs --pwd {here} image.sif hpcelastic agent --nnodes 2:4 "
    assert all(line.startswith(called) for line in (here / "calls").read_text().splitlines())
