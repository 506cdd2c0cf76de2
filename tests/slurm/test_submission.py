"""Submission: the options of sbatch, the task's environment, and the states of jobs."""

import dataclasses
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcelastic
from hpcelastic import bootstrap
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.api import liveness
from hpcelastic.api.jobs import jobs_of, live_jobs, record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import main
from hpcelastic.config import SlurmSettings
from hpcelastic.errors import ConfigError, InternalError, RunFailed, SlurmError
from hpcelastic.health.incidents import Incident, IncidentKind, record
from hpcelastic.health.node_record import NodeRecord
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import NodeState
from hpcelastic.rendezvous.run import close_run, open_run
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask, identity_of, slurm_task
from hpcelastic.slurm.job_cleanup import JobCleanup
from hpcelastic.slurm.submission import minutes, remarks, sbatch_text, submit_job
from hpcelastic.storage.paths import RunPaths
from tests.backends.servers import servers_of_every_backend
from tests.cluster import SlurmCluster
from tests.protocol.builders import member

ROOT = Path(__file__).parents[2]
ENDED = 120.0
"""Time limit for the end of a run in seconds. It is long, because the machine may be busy with other tests."""

SAY = """\
import os
print(*(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK")))
"""
JOB = """\
run: {name: job}
entrypoint: {script: say.py}
nodes: 2..4
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use(tmp_path, monkeypatch)


def use(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory with a job file."""
    monkeypatch.chdir(directory)
    Path("say.py").write_text(SAY)
    Path("job.yaml").write_text(JOB)
    return directory


@pytest.fixture
def shared(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The cluster of four nodes, in a directory that all of them share."""
    return login(cluster, monkeypatch)


def login(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    use(cluster.path, monkeypatch)
    return cluster


def text_of(*overrides: str) -> str:
    return sbatch_text(resolve("job.yaml", overrides), RunPaths(Path("/runs/job")))


# ---------------------------------------------------------------------------------- the options of sbatch

GPU = """\
#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --job-name=gpu
#SBATCH --mail-type=END,FAIL
#SBATCH --mem=512G
#SBATCH --no-kill
#SBATCH --nodes=2-4
#SBATCH --open-mode=append
#SBATCH --output=/runs/gpu/slurm/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=720

# setup
module load cuda

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /runs/gpu/slurm/%j_%t_log.out --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
--cpus-per-task=64 PYTHON -u -m submitit.core._submit /runs/gpu/slurm

status=$?
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
request=/runs/gpu/slurm/requeue-$id
success=/runs/gpu/slurm/succeeded-$id
if [ -e "$request" ]; then
    requested=$(cat "$request"); rm "$request"
    # Since 24.05, SLURM itself requeues a job that ends during its preemption. A request would then requeue it twice.
    if scontrol show job "$job" | grep -q 'PreemptTime=[0-9]'; then
        version=$(scontrol --version)
        if [[ ${version##* } < 24.05 ]]; then requested=requeue; else requested=; fi
    fi
    if [ "$requested" = requeue ]; then scontrol requeue "$job"; fi
fi
# srun may report a lost node, although the run has succeeded without it.
if [ -e "$success" ]; then status=0; fi
exit $status
"""


POOL = """\
#!/bin/bash

# Parameters
#SBATCH --array=0-8%9
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --job-name=pool
#SBATCH --mem=512G
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=/runs/pool/slurm/%A_%a_0_log.out
#SBATCH --partition=preemptible
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /runs/pool/slurm/%A_%a_%t_log.out --ntasks-per-node=1 --cpus-per-task=64 \
PYTHON -u -m submitit.core._submit /runs/pool/slurm

status=$?
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
request=/runs/pool/slurm/requeue-$id
success=/runs/pool/slurm/succeeded-$id
if [ -e "$request" ]; then
    requested=$(cat "$request"); rm "$request"
    # Since 24.05, SLURM itself requeues a job that ends during its preemption. A request would then requeue it twice.
    if scontrol show job "$job" | grep -q 'PreemptTime=[0-9]'; then
        version=$(scontrol --version)
        if [[ ${version##* } < 24.05 ]]; then requested=requeue; else requested=; fi
    fi
    if [ "$requested" = requeue ]; then scontrol requeue "$job"; fi
fi
# srun may report a lost node, although the run has succeeded without it.
if [ -e "$success" ]; then status=0; fi
exit $status
"""


@pytest.mark.parametrize(("name", "expected"), [("gpu", GPU), ("pool", POOL)], ids=["allocation", "pool"])
def test_the_whole_batch_script(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = sbatch_text(resolve(f"configs/{name}.yaml", ()), RunPaths(Path("/runs") / name))
    assert text == expected.replace("PYTHON", sys.executable)


KEYS = {
    "shape": ("slurm.shape=pool", {"--array=0-3%4", "--nodes=1", "--output=/runs/job/slurm/%A_%a_0_log.out"}),
    "partition": ("slurm.partition=a", {"--partition=a"}),
    "account": ("slurm.account=a", {"--account=a"}),
    "qos": ("slurm.qos=a", {"--qos=a"}),
    "time": ("slurm.time=1:30:00", {"--time=90"}),
    "gpus_per_node": ("slurm.gpus_per_node=a100:4", {"--gpus-per-node=a100:4"}),
    "cpus_per_node": ("slurm.cpus_per_node=3", {"--cpus-per-task=3"}),
    "memory": ("slurm.memory=64G", {"--mem=64G"}),
    "constraint": ("slurm.constraint=a&b", {"--constraint='a&b'"}),
    "exclude": ("slurm.exclude=n[1-2]", {"--exclude='n[1-2]'"}),
    "segment": ("slurm.segment=2", {"--segment=2"}),
    "requeue": ("slurm.requeue=false", {"--no-requeue"}),
    "max_requeues": ("slurm.max_requeues=3", set()),
    "warning": ("slurm.warning=60", {"--signal=USR2@60"}),
    "refill": ("slurm.refill=0", set()),
    "poll": ("slurm.poll=60", set()),
    "setup": ("slurm.setup=[module load cuda]", set()),
    "container": ("slurm.container={image: a.sif}", set()),
    "options": ("slurm.options={mail-type: END}", {"--mail-type=END"}),
    "srun_options": ("slurm.srun_options={mpi: none}", set()),
}
FURTHER = {
    "no time limit": ("slurm.time=UNLIMITED", {"--time=UNLIMITED"}),
    "one number of nodes": ("nodes=3", {"--nodes=3"}),
    "spares": ("nodes={min: 2, max: 4, spares: 2}", {"--nodes=2-6"}),
    "true option": ("slurm.options={exclusive: true}", {"--exclusive"}),
    "false option": ("slurm.options={exclusive: false}", set()),
    "number": ("slurm.options={nice: 100}", {"--nice=100"}),
    "words": ("slurm.options={comment: two words}", {"--comment='two words'"}),
    "list": ("slurm.options={mail-type: [END, FAIL]}", {"--mail-type=END,FAIL"}),
    "empty list": ("slurm.options={mail-type: []}", set()),
    "equals sign": ("slurm.options={comment: a=b}", {"--comment=a=b"}),
    "quote": ("slurm.options={comment: it's}", {"""--comment='it'"'"'s'"""}),
    "option that submitit sets too": ("slurm.options={signal: USR1@30}", {"--signal=USR1@30"}),
}


UNSAID = "slurm.cpus_per_node is not set"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        pytest.param("slurm.time=5", True, id="no option for processors"),
        pytest.param("slurm.options={exclusive: false}", True, id="not exclusive"),
        pytest.param("slurm.cpus_per_node=8", False, id="number of processors"),
        pytest.param("slurm.options={exclusive: true}", False, id="whole nodes"),
        pytest.param("slurm.options={cpus-per-gpu: 4}", False, id="processors for each GPU"),
    ],
)
def test_a_job_without_a_request_for_processors_gets_a_remark(
    override: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [UNSAID in line for line in remarks(resolve("job.yaml", [override]))] == [True] * told
    assert main(["sbatch", "job.yaml", override]) == 0
    output = capsys.readouterr()
    assert (f"hpcelastic sbatch: {UNSAID}" in output.err) == told
    assert UNSAID not in output.out


def step_of(text: str) -> str:
    """Return the line of a batch script that starts the agents."""
    return next(line for line in text.splitlines() if line.startswith("srun "))


def flags(text: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}


@pytest.mark.parametrize(("override", "added"), [*KEYS.values(), *FURTHER.values()], ids=[*KEYS, *FURTHER])
def test_a_key_becomes_a_flag(override: str, added: set[str]) -> None:
    assert flags(text_of(override)) - flags(text_of()) == added


def test_elements_of_a_pool_have_no_survivors() -> None:
    """SLURM requeues an element that has lost its node. With --no-kill it would not."""
    assert "no-kill" not in text_of("slurm.shape=pool")
    assert "no-kill" in text_of()


def test_the_table_has_every_key() -> None:
    assert list(KEYS) == [field.name for field in dataclasses.fields(SlurmSettings)]


def test_unset_keys_are_left_to_slurm() -> None:
    assert flags(text_of()) == {
        "--job-name=job", "--nodes=2-4", "--no-kill", "--requeue",
        "--open-mode=append", "--output=/runs/job/slurm/%j_0_log.out", "--signal=USR2@120",
    }  # fmt: skip


def test_setup_lines_go_before_the_agents() -> None:
    lines = text_of("slurm.setup=[module load cuda, ulimit -n 9999]").splitlines()
    assert lines.index("module load cuda") + 1 == lines.index("ulimit -n 9999")
    assert lines.index("ulimit -n 9999") < next(i for i, line in enumerate(lines) if line.startswith("srun "))


def test_the_step_repeats_the_cpus() -> None:
    assert " --cpus-per-task=3 " in step_of(text_of("slurm.cpus_per_node=3"))
    assert "--cpus-per-task" not in text_of()


STEPS = {
    "pair": ("{cpu-bind: none}", "--wait=0 --cpu-bind=none PYTHON"),
    "flag": ("{overlap: true}", "--wait=0 --overlap PYTHON"),
    "left out": ("{overlap: false}", "--wait=0 PYTHON"),
    "list": ("{mem-bind: [map_mem:0, 1]}", "--wait=0 --mem-bind=map_mem:0,1 PYTHON"),
    "quotes": ("{comment: a 'b'}", """--wait=0 '--comment=a '"'"'b'"'"'' PYTHON"""),
}


@pytest.mark.parametrize(("options", "words"), STEPS.values(), ids=STEPS)
def test_options_of_the_step(options: str, words: str) -> None:
    assert words.replace("PYTHON", f"{sys.executable} -u -m") in text_of(f"slurm.srun_options={options}")


HERE = "/home/me"
RUNTIMES = {
    "apptainer": (
        ["slurm.container={image: a.sif, mounts: [/data, '/scratch:/tmp:ro']}"],
        f"--wait=0 apptainer exec --bind={HERE} --bind=/runs/job --bind=/data --bind=/scratch:/tmp:ro --pwd={HERE} "
        "a.sif python3 -u -m submitit.core._submit /runs/job/slurm",
    ),
    "GPUs": (
        ["slurm.container.image=a.sif", "slurm.gpus_per_node=a100:4"],
        f"apptainer exec --nv --bind={HERE} --bind=/runs/job --pwd={HERE} a.sif python3 -u",
    ),
    "GPUs by another option": (["slurm.container.image=a.sif", "slurm.options={gres: [gpu:2]}"], "exec --nv --bind="),
    "GPUs of AMD": (
        ["slurm.container={image: a.sif, options: {nv: false, rocm: true}}", "slurm.gpus_per_node=4"],
        f"apptainer exec --bind={HERE} --bind=/runs/job --pwd={HERE} --rocm a.sif python3 -u",
    ),
    "options": (
        ["slurm.container={image: docker://a/b, runtime: singularity, options: {env: [A=1, B=2], cleanenv: true}}"],
        f"singularity exec --bind={HERE} --bind=/runs/job --pwd={HERE} --env=A=1 --env=B=2 --cleanenv docker://a/b",
    ),
    "another Python": (
        ["slurm.container={image: my image.sif, python: /opt/my env/bin/python}"],
        "'my image.sif' '/opt/my env/bin/python' -u -m submitit",
    ),
    "working directory": (
        ["slurm.container.image=a.sif", "slurm.options={chdir: inner}"],
        f"exec --bind={HERE}/inner --bind=/runs/job --pwd={HERE}/inner a.sif",
    ),
    "pyxis": (
        ["slurm.container={image: nvcr.io#a/b:24.1, runtime: pyxis, mounts: [/data, '/a:/b:ro']}"],
        "--wait=0 '--container-image=nvcr.io#a/b:24.1' "
        f"--container-mounts={HERE}:{HERE},/runs/job:/runs/job,/data:/data,/a:/b:ro --container-workdir={HERE} "
        "python3 -u -m submitit.core._submit /runs/job/slurm",
    ),
    "pyxis' options": (
        ["slurm.container={image: a, runtime: pyxis, options: {no-container-mount-home: true}}", "slurm.shape=pool"],
        f"--container-workdir={HERE} --no-container-mount-home python3 -u",
    ),
}


@pytest.mark.parametrize(("overrides", "words"), RUNTIMES.values(), ids=RUNTIMES)
def test_a_container_is_part_of_the_step(overrides: list[str], words: str, directory: Path) -> None:
    assert words.replace(HERE, str(directory)) in step_of(text_of(*overrides))


def test_a_directory_that_cannot_be_mounted(directory: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^/a:b/job: cannot be mounted in a container, because it contains ':' or ','; use another"
    ):
        sbatch_text(resolve("job.yaml", ["slurm.container.image=a.sif"]), RunPaths(Path("/a:b/job")))


def test_a_module_in_the_image_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sbatch", "job.yaml", "entrypoint={module: only.there}"]
    assert main(arguments) == 2
    assert "there is no module 'only.there'" in capsys.readouterr().err
    assert main([*arguments, "slurm.container.image=a.sif"]) == 0


def test_an_agent_without_scancel_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    me = member("a", NodeState.RUNNING, 1)
    paths = RunPaths(Path("run"))
    JobCleanup(paths, FileBackend(paths), SlurmTask("7", "n2", 1, 4, 0), me, RendezvousSettings()).end_job("a test")
    assert "scancel: not found" in (output := capsys.readouterr().err)
    assert output.endswith("cancel the job yourself: scancel 7\n")


TIMES = {
    "30": 30,
    "0": 0,
    "30:00": 30,
    "0:01": 1,
    "30:30": 31,
    "1:00:00": 60,
    "12:34:56": 755,
    "1-0": 1440,
    "2-12": 3600,
    "1-2:30": 1590,
    "1-02:30:01": 1591,
    "UNLIMITED": None,
    "infinite": None,
}


@pytest.mark.parametrize(("time", "expected"), TIMES.items(), ids=TIMES)
def test_minutes(time: str, expected: int | None) -> None:
    assert minutes(time) == expected


def test_the_script_is_printed_without_slurm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["sbatch", "job.yaml"]) == 0
    assert capsys.readouterr().out == sbatch_text(resolve("job.yaml", ()), RunPaths(Path("runs/job").absolute()))
    assert not Path("runs").exists()


def test_submitting_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmError, match="sbatch: not found; submit from a login node, or use `hpcelastic run`"):
        submit_job(resolve("job.yaml", ()), RunPaths(Path("run").absolute()), bootstrap.run_agent)
    assert not Path("run").exists()


@pytest.mark.parametrize("variable", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
def test_submitting_to_another_cluster_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv(variable, "east")
    with pytest.raises(SlurmError, match=f"{variable} is east: jobs for other clusters are not supported"):
        submit_job(resolve("job.yaml", ()), RunPaths(Path("run").absolute()), bootstrap.run_agent)
    assert not Path("run").exists()


# ----------------------------------------------------------------------------------------- of a run that a server keeps


IN_SERVER = ("rendezvous.backend=theirs", "rendezvous.endpoint=here:1")


def test_the_server_of_a_new_run_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers_of_every_backend(monkeypatch)["here:1"]
    config = resolve("job.yaml", IN_SERVER)
    assert "--exclude" not in sbatch_text(config, prepare(config))
    assert server.readers == 0


def test_the_server_is_asked_for_the_nodes_of_a_run_with_incidents(monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers_of_every_backend(monkeypatch)["here:1"]
    config = resolve("job.yaml", IN_SERVER)
    paths = prepare(config)
    agent = open_agent_backend(paths, "job", config.protocol_settings.rendezvous)
    open_run(agent, "job", config.protocol_settings, "test")
    for node in (member("a", NodeState.READY, 0), member("b", NodeState.READY, 0)):
        agent.lease(node.node).renew(node)
    record(paths, Incident("a", IncidentKind.CHECK, "", time.time()))
    assert "#SBATCH --exclude=a\n" in sbatch_text(config, paths)
    assert (server.readers, server.open) == (1, 1)


# ------------------------------------------------------------------------------------------- nodes that others recorded

RECORDED = {
    "of this cluster": ({"n1", "n2", "n3"}, "#SBATCH --exclude=n4,n2\n"),
    "of another cluster": ({"a1", "a2"}, "#SBATCH --exclude=n4\n"),
    "all of the partition": ({"n2"}, "#SBATCH --exclude=n4\n"),
    "unknown, because SLURM does not answer": (None, "#SBATCH --exclude=n4\n"),
}


@pytest.mark.parametrize(("cluster", "expected"), RECORDED.values(), ids=RECORDED)
def test_the_nodes_that_other_runs_have_recorded_are_excluded(
    cluster: set[str] | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def node_names(partition: str | None) -> set[str]:
        asked.append(partition)
        if cluster is None:
            raise SlurmError("sinfo: no answer")
        return cluster

    monkeypatch.setattr("hpcelastic.slurm.scheduler.node_names", node_names)
    Path("nodes").mkdir(mode=0o700)
    more = (f"health.shared_record={Path('nodes').absolute()}", "slurm.exclude=n4", "slurm.partition=gpu")
    config = resolve("job.yaml", more)
    paths = prepare(config)
    assert "#SBATCH --exclude=n4\n" in sbatch_text(config, paths)
    assert asked == [], "SLURM is not asked without need"
    NodeRecord(Path("nodes")).add(Incident("n2", IncidentKind.HARDWARE, "it smokes", time.time()), Path("/runs/other"))
    assert expected in sbatch_text(config, paths)
    assert asked == ["gpu"]
    assert "#SBATCH --exclude=n4\n" in sbatch_text(resolve("job.yaml", (*more, "health.exclude=false")), paths)


def test_a_record_that_cannot_be_used_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match="the shared record of nodes /absent/nodes is no directory"):
        prepare(resolve("job.yaml", ("health.shared_record=/absent/nodes",)))
    assert not Path("run").exists()


# ------------------------------------------------------------------------------------------ the environment of a task

STEP = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURM_NNODES": "4"}
TASKS: dict[str, tuple[dict[str, str], SlurmTask | None]] = {
    "task of a step": (STEP, SlurmTask("7", "n2", 1, 4, 0)),
    "requeued": ({**STEP, "SLURM_RESTART_COUNT": "2"}, SlurmTask("7", "n2", 1, 4, 2)),
    "invalid numbers": (
        {**STEP, "SLURM_NODEID": "", "SLURM_NNODES": "x", "SLURM_RESTART_COUNT": "?"},
        SlurmTask("7", "n2", 0, 1, 0),
    ),
    "no numbers": (
        {name: STEP[name] for name in ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_STEP_ID")},
        SlurmTask("7", "n2", 0, 1, 0),
    ),
    "element of an array": (
        {**STEP, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"},
        SlurmTask("7", "n2", 1, 4, 0, array_job="5", array_task=3),
    ),
    "batch script": ({name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}, None),
    "salloc's shell": ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "4"}, None),
    "no job": ({}, None),
}


@pytest.mark.parametrize(("environ", "expected"), TASKS.values(), ids=TASKS)
def test_slurm_task(environ: dict[str, str], expected: SlurmTask | None) -> None:
    assert slurm_task(environ) == expected


def test_the_identity_of_a_task() -> None:
    place = identity_of(SlurmTask("7", "n2", node_id=1, nodes=4, restart=2))
    assert place == NodeIdentity("n2", job="7", job_nodes=4, restart=2, order=1)


def test_the_task_of_an_element_has_no_number_of_nodes() -> None:
    place = identity_of(SlurmTask("7", "n2", node_id=0, nodes=1, restart=2, array_job="5", array_task=3))
    assert place == NodeIdentity("n2_3", job="7", host="n2", restart=2, order=3)


def test_outside_of_slurm_the_identity_is_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert bootstrap.local_identity() == NodeIdentity(os.uname().nodename.partition(".")[0])


def test_a_directory_without_a_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file; name a directory made by hpcelastic submit"):
        bootstrap.run_agent("nothing")
    assert not Path("nothing").exists()


def test_a_task_of_a_run_that_is_closed_does_not_count_as_a_success() -> None:
    paths = prepare(resolve("job.yaml", ()))
    close_run(FileBackend(paths), "test", "enough")
    with pytest.raises(SystemExit) as ended:
        bootstrap.run_agent(str(paths.root))
    assert ended.value.code == 1


def test_an_internal_error_has_its_own_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    paths = prepare(resolve("job.yaml", ()))
    monkeypatch.setattr(bootstrap, "Agent", fail)
    with pytest.raises(SystemExit) as ended:
        bootstrap.run_agent(str(paths.root))
    assert ended.value.code == InternalError.exit_code
    assert "hpcelastic agent: internal error: Traceback (most recent call last)" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- the states of jobs


@pytest.fixture
def command(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script into PATH as one of SLURM's commands."""
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)

    def make(name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)

    return make


Command = Callable[[str, str], None]


ACCEPTS = "echo Submitted batch job 7"


def test_submit_warns_of_a_job_without_a_request_for_processors(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command("sbatch", ACCEPTS)
    assert main(["submit", "job.yaml"]) == 0
    assert f"hpcelastic submit: {UNSAID}" in capsys.readouterr().err


def test_python_warns_of_a_job_without_a_request_for_processors(command: Command) -> None:
    command("sbatch", ACCEPTS)
    with pytest.warns(UserWarning, match=UNSAID) as told:
        hpcelastic.submit("job.yaml")
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("points", [None, [{"slurm.time": 5}, {"slurm.time": 6}]], ids=["submit", "sweep"])
def test_a_warning_that_raises_leaves_nothing_behind(
    command: Command, directory: Path, points: list[dict[str, Any]] | None
) -> None:
    command("sbatch", ACCEPTS)
    with pytest.raises(UserWarning, match=UNSAID):
        hpcelastic.sweep("job.yaml", points) if points else hpcelastic.submit("job.yaml")
    assert not (directory / "runs").exists()


def test_the_states_of_the_known_jobs(command: Command) -> None:
    command("squeue", "echo 7 RUNNING; echo 8 PENDING; echo 9 COMPLETED; echo; echo 9 PENDING")
    assert scheduler.job_states(["7", "9", "10"]) == {"7": ["RUNNING"], "9": ["COMPLETED", "PENDING"]}


ELEMENTS = {
    "as submitted": ("PENDING PENDING PENDING PENDING", "4 elements: 4 PENDING"),
    "some": ("RUNNING PENDING RUNNING RUNNING", "4 elements: 3 RUNNING, 1 PENDING"),
    "ended": ("COMPLETED RUNNING FAILED RUNNING", "4 elements: 2 RUNNING, 2 ended"),
    "forgotten": ("RUNNING", "4 elements: 1 RUNNING, 3 ended"),
    "all ended": ("FAILED CANCELLED", None),
    "preempted for good": ("PREEMPTED PREEMPTED", None),
    "none known to SLURM": ("", None),
}


@pytest.mark.parametrize(("states", "words"), ELEMENTS.values(), ids=ELEMENTS)
def test_an_array_is_one_job_with_many_states(states: str, words: str | None, command: Command) -> None:
    paths = RunPaths(Path("run"))
    paths.slurm.mkdir(parents=True)
    record_job(paths, "5", elements=4)
    record_job(paths, "9")
    command("squeue", f"for state in {states}; do echo 5 $state; done; echo 9 PENDING")
    assert jobs_of(paths) == ["5", "9"]
    assert live_jobs(paths) == ({"5": words, "9": "PENDING"} if words else {"9": "PENDING"})


def test_without_a_job_slurm_is_not_queried(command: Command) -> None:
    command("squeue", "exit 1")
    command("scancel", "exit 1")
    assert scheduler.job_states([]) == {}
    scheduler.cancel_jobs([])


def test_the_users_defaults_for_the_commands_are_ignored(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    command("squeue", 'echo 7 "${SQUEUE_PARTITION-RUNNING}"')
    command("scancel", 'read -r answer || [ -z "$SCANCEL_INTERACTIVE" ]')
    assert scheduler.job_states(["7"]) == {"7": ["RUNNING"]}
    scheduler.cancel_jobs(["7"])


FAILURES = {
    "error": ("echo 'squeue: error: a' >&2; echo 'squeue: b' >&2; exit 1", r"STATES: error: a; b$"),
    "error without a message": ("exit 3", "STATES: exit status 3$"),
    "no answer": ("exec sleep 60", r"squeue: no answer in 0\.3 s; is the SLURM controller up \(scontrol ping\)\?"),
    "not installed": ("", "squeue: not found; is this a node of a SLURM cluster, with SLURM in PATH"),
}


@pytest.mark.parametrize(("script", "message"), FAILURES.values(), ids=FAILURES)
def test_a_command_that_fails(script: str, message: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_TIMEOUT", 0.3 if "sleep" in script else 30.0)
    if script:
        command("squeue", script)
    else:
        monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmError, match=message.replace("STATES", "squeue --noheader .*")):
        scheduler.job_states(["7"])


# ---------------------------------------------------------------------------------------------------- on a real cluster


def wait_succeeded(run: Run) -> list[str]:
    """Wait for the success of the run and return the output of its ranks, sorted."""
    assert run.wait(timeout=ENDED).phase == "succeeded", run
    return sorted(line.partition("] ")[2] for line in run.logs())


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["allocation", "pool"])
def test_a_dry_run_prints_the_submitted_script(
    shape: str, shared: SlurmCluster, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command("sbatch", f'echo sbatch "$@" >>calls; exec {shutil.which("sbatch", path=shared.env["PATH"])} "$@"')
    keys = ["slurm.time=5", "slurm.cpus_per_node=2", "slurm.setup=[export A=1]", "slurm.options={comment: a b}"]
    arguments = ["job.yaml", *keys, f"slurm.shape={shape}", "nodes={min: 2, max: 3, spares: 1}"]
    assert main(["submit", "--dry-run", *arguments]) == 0
    line, _, script = capsys.readouterr().out.partition("\n\n")
    assert main(["sbatch", *arguments]) == 0
    assert capsys.readouterr().out == script
    assert not Path("runs").exists()
    assert main(["submit", *arguments, "--wait"]) == 0
    assert Path("runs/job/slurm/1_submission.sh").read_bytes() == script.encode()
    assert re.sub(r"file_\w+\.sh", "file_UUID.sh", Path("calls").read_text()) == f"{line}\n"


def test_a_dry_run_within_another_job_shows_the_removed_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert main(["submit", "--dry-run", "job.yaml", "run.directory=/runs"]) == 0
    line = capsys.readouterr().out.partition("\n")[0]
    assert line == "env --unset=SLURM_NTASKS sbatch /runs/job/slurm/.submission_file_UUID.sh"


@pytest.mark.slow
def test_a_range_of_nodes_gets_all_free_nodes(shared: SlurmCluster) -> None:
    run = hpcelastic.submit("job.yaml")
    assert wait_succeeded(run) == [f"{rank} 4 None None" for rank in range(4)]
    assert shared.job("1")["NumNodes"] == "4"


FAKE = """\
#!/bin/bash
# Starts the command as apptainer does, in an image without SLURM, and tells how it was called.
echo "$*" >>"$CALLS"
[ "$1" = exec ] || exit 9
while [ "$1" != image.sif ]; do shift || exit 9; done
shift
export PATH=/nowhere INSIDE=yes
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["allocation", "pool"])
def test_a_run_in_a_container(
    shape: str, shared: SlurmCluster, command: Command, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("apptainer", FAKE.partition("\n")[2])
    monkeypatch.setenv("CALLS", str(shared.path / "calls"))
    Path("say.py").write_text("import os; print(os.environ['INSIDE'], os.environ['PATH'], os.getcwd())")
    box = {"image": "image.sif", "python": sys.executable}
    run = hpcelastic.submit("job.yaml", nodes=2, slurm__shape=shape, slurm__container=box, rendezvous__last_call=2)
    assert wait_succeeded(run) == [f"yes /nowhere {shared.path}"] * 2
    here, there = f"--bind={shared.path}", f"--bind={run.directory}"
    expected = f"exec {here} {there} --pwd={shared.path} image.sif {sys.executable} -u -m submitit.core._submit"
    assert Path("calls").read_text().splitlines() == [f"{expected} {run.directory}/slurm"] * 2


def test_quotes_and_special_characters_reach_slurm(shared: SlurmCluster) -> None:
    comment = """a=b 'c' "d" # $HOME `e`; ü"""
    hpcelastic.submit("job.yaml", slurm__options={"hold": True, "comment": comment, "licenses": []})
    shown = (line.strip() for line in shared.run("scontrol", "show", "job", "1").splitlines())
    assert f"Comment={comment}" in shown


@pytest.mark.slow
def test_options_of_the_step_reach_srun(shared: SlurmCluster) -> None:
    Path("say.py").write_text("import os; print(os.environ.get('SLURM_CPU_BIND_TYPE'), os.environ['SLURM_JOB_NAME'])")
    options = {"cpu-bind": "none", "job-name": "agents", "mpi": "none"}
    assert wait_succeeded(hpcelastic.submit("job.yaml", nodes=1, slurm__srun_options=options)) == ["none agents"]


@pytest.mark.slow
def test_one_worker_for_each_gpu(fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = login(fresh_cluster(nodes=2, gpus=2), monkeypatch)
    run = hpcelastic.submit("job.yaml", nodes=2, slurm__gpus_per_node=2, slurm__cpus_per_node=3)
    assert wait_succeeded(run) == [f"{rank} 4 0,1 3" for rank in range(4)]
    cluster.wait_job("1", "COMPLETED")


UNEQUAL: dict[str, dict[str, object]] = {
    "allocation": {"slurm__options": {"gpus": 4}},
    "pool": {
        "slurm__shape": "pool",
        "slurm__options": {"exclusive": True},
        "slurm__setup": ["export SLURM_GRES=gpu:$SLURM_GPUS_ON_NODE"],
        "rendezvous__last_call": 5,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("requested", UNEQUAL.values(), ids=UNEQUAL)
def test_each_node_has_workers_for_its_own_gpus(
    requested: dict[str, object], fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    login(fresh_cluster(nodes=2, gpus=(1, 3)), monkeypatch)
    Path("say.py").write_text(
        "import os; print(*(os.environ[n] for n in ('LOCAL_WORLD_SIZE', 'CUDA_VISIBLE_DEVICES')))"
    )
    run = hpcelastic.submit("job.yaml", nodes=2, **requested)
    assert wait_succeeded(run) == ["1 0", "3 0,1,2", "3 0,1,2", "3 0,1,2"]


def test_sbatch_accepts_the_option_of_every_key(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = login(fresh_cluster(nodes=4, gpus=2), monkeypatch)
    leave_out = {"constraint", "gpus_per_node", "partition", "segment"}  # the cluster has nothing of this name
    given = [override for key, (override, _) in KEYS.items() if key not in leave_out]
    given += ["slurm.partition=main", "slurm.gpus_per_node=2", "slurm.memory=1G", "slurm.options.exclusive=true"]
    cluster.run("sbatch", "--test-only", stdin=text_of(*given))


def test_a_job_without_a_time_gets_the_limit_of_its_partition(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = "PartitionName=short Nodes=ALL MaxTime=30 DefaultTime=7 State=UP"
    cluster = login(fresh_cluster(nodes=2, extra_conf=partition), monkeypatch)
    wait_succeeded(hpcelastic.submit("job.yaml", nodes=2, slurm__partition="short"))
    assert cluster.job("1")["TimeLimit"] == "00:07:00"


def test_submitting_within_another_job(shared: SlurmCluster) -> None:
    submit = [sys.executable, "-m", "hpcelastic", "submit", "job.yaml", "slurm.memory=1G"]
    shared.run("srun", "-n1", "-c2", "--mem-per-cpu=100", f"--chdir={shared.path}", *submit)
    found = wait_succeeded(Run("runs/job"))
    assert len(found) in (3, 4), "the node of the other job may not be free yet"
    assert found == [f"{rank} {len(found)} None None" for rank in range(len(found))]


def test_a_refused_job_leaves_nothing_behind(shared: SlurmCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "job.yaml", "slurm.partition=nowhere"]) == 1
    assert capsys.readouterr().err == (
        "hpcelastic submit: sbatch refused the job: invalid partition specified: nowhere; "
        "Batch job submission failed: Invalid partition name specified\n"
    )
    assert not Path("runs/job").exists()


def test_jobs_that_slurm_does_not_know(shared: SlurmCluster) -> None:
    job = shared.submit("sleep 1000")
    assert scheduler.job_states([job, "99"]) in ({job: ["PENDING"]}, {job: ["RUNNING"]})
    scheduler.cancel_jobs(["99", job])
    shared.wait_job(job, "CANCELLED")
    scheduler.cancel_jobs([job, "99"])


@pytest.mark.slow
def test_a_job_that_slurm_has_forgotten(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = login(fresh_cluster(nodes=2, extra_conf="MinJobAge=2"), monkeypatch)
    run = hpcelastic.submit("job.yaml", nodes=2, slurm__options={"hold": True})
    cluster.run("scancel", "1")
    forget(cluster, "1")
    monkeypatch.setattr(liveness, "_SLURM_POLL_INTERVAL", 0.5)
    with pytest.raises(
        RunFailed, match=r"no agent and no SLURM job is left; resume the run, its state is in .*runs/job"
    ):
        run.wait(timeout=ENDED)
    assert main(["status", "job"]) == 0
    assert "jobs       1 ended" in capsys.readouterr().out
    assert main(["cancel", "job"]) == 0
    wait_succeeded(hpcelastic.submit("job.yaml", nodes=2, resume=True))
    assert run.status().jobs == ("1", "2")


def forget(cluster: SlurmCluster, job: str) -> None:
    """Wait until squeue no longer knows the job, not even as one that has ended."""
    deadline = time.monotonic() + ENDED
    while job in cluster.run("squeue", "--noheader", "--states=all", "--format=%A").split():
        assert time.monotonic() < deadline, "SLURM still knows the job"
        time.sleep(0.2)


def test_a_job_of_a_closed_run_fails(shared: SlurmCluster) -> None:
    run = hpcelastic.submit("job.yaml", slurm__options={"hold": True})
    close_run(FileBackend(RunPaths(run.directory)), "test", "enough")
    shared.run("scontrol", "release", "1")
    shared.wait_job("1", "FAILED", timeout=ENDED)


@pytest.mark.slow
def test_a_job_without_batch_node_ends_when_too_few_nodes_are_left(shared: SlurmCluster) -> None:
    Path("say.py").write_text("import time; print('up', flush=True); time.sleep(1000)")
    times = {"lease": 4, "margin": 1, "poll": 0.2, "join_timeout": 10}
    run = hpcelastic.submit("job.yaml", nodes=3, **{f"rendezvous__{key}": value for key, value in times.items()})
    deadline = time.monotonic() + ENDED
    while len(list(run.logs())) < 3:
        assert time.monotonic() < deadline, run
        time.sleep(0.1)
    shared.fail_node(1)
    shared.wait_job("1", ("CANCELLED", "FAILED"), timeout=ENDED)


@pytest.mark.slow
def test_the_function_example(shared: SlurmCluster) -> None:
    example = str(ROOT / "examples" / "function.py")
    printed = shared.run(sys.executable, example, "--executor", "slurm", "--nodes", "2..3", timeout=ENDED)
    assert [line.partition(" x")[0] for line in printed.splitlines() if line.startswith("rank ")] == [
        f"rank {rank}: y = 3.000" for rank in range(3)
    ]


def test_a_range_of_nodes_without_ntasks_per_node_gets_all_free_nodes(shared: SlurmCluster) -> None:
    """No job uses `--ntasks-per-node`, because with it SLURM may give such a job only its minimum of nodes."""
    job = shared.submit("true", "--nodes=2-4")
    shared.wait_job(job, "COMPLETED")
    assert shared.job(job)["NumNodes"] == "4"
