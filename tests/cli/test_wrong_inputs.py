"""Wrong inputs: each causes one clear message and an exit status other than 0, and leaves no process and no file."""

import getpass
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.shell import JOB, Shell, eventually

FILES = {
    "job.yaml": JOB,
    "train.py": "print('hello')\n",
    "mod.py": "import threading\n\ndef work():\n    return 1\n\ndef lock():\n    return threading.Lock()\n",
    "syntax.py": "def broken(:\n    pass\n",
    "three.py": "import sys\nsys.exit(3)\n",
    "plain.sh": "exit 0\n",
    "raises.py": "raise ValueError('no data here')\n",
    "empty/keep": "",
}

NO_CONTROLLER = f"""\
ClusterName=nobody
SlurmctldHost=localhost
SlurmctldPort=1
SlurmUser={getpass.getuser()}
AuthType=auth/none
CredType=cred/none
MessageTimeout=1
NodeName=n1
PartitionName=p Nodes=n1 Default=YES
"""

NO_DRIVER = {"PYTHONPATH": str(Path(__file__).parents[1] / "health" / "no_driver")}
AGENT = "agent --rdzv-endpoint ./runs --rdzv-id r --local-addr 127.0.0.1"
QUICK = "--rdzv-conf lease=2,margin=0.5,poll=0.05,last_call=1"


@dataclass(frozen=True)
class Wrong:
    """A command that must be refused."""

    id: str
    command: str
    words: str
    """Parts of the message, in this order, separated by `` … ``."""

    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    status: int = 2
    lines: int = 1


def yaml(text: str) -> Mapping[str, str]:
    return {"wrong.yaml": text}


def entrypoint(text: str) -> Mapping[str, str]:
    return yaml(JOB.replace("script: train.py", text))


JOB_FILES = [  # tests/config/test_errors.py has every message about the text of a file
    Wrong(
        "yaml-syntax",
        "run wrong.yaml",
        "wrong.yaml:2:2: is not valid YAML … close the bracket",
        yaml("run: {name: a\nx: 1\n"),
    ),
    Wrong(
        "yaml-two-problems",
        "run wrong.yaml",
        "wrong.yaml:6: nodes … wrong.yaml:7: worker",
        yaml(JOB + "nodes: x\nworker: {}\n"),
        lines=2,
    ),
    Wrong("file-missing", "run jo.yaml", "jo.yaml: no such file; did you mean job.yaml?"),
    Wrong("file-is-directory", "run .", "is a directory … job.yaml"),
    Wrong(
        "show-file-missing", "config show jo.yaml", "hpcelastic config: jo.yaml: no such file; did you mean job.yaml?"
    ),
    Wrong("show-wrong-file", "config show wrong.yaml", "wrong.yaml:6: worker: no such key", yaml(JOB + "worker: {}\n")),
    Wrong(
        "sbatch-wrong-file",
        "sbatch wrong.yaml",
        "slurm.tme … did you mean slurm.time?",
        yaml(JOB + "slurm: {tme: 1}\n"),
    ),
    Wrong(
        "submit-wrong-file", "submit wrong.yaml", "slurm.time … 'soon' … HH:MM:SS", yaml(JOB + "slurm: {time: soon}\n")
    ),
    Wrong("override-no-value", "run job.yaml nodes", "override 1: nodes … KEY=VALUE"),
    Wrong("override-unknown-key", "run job.yaml run.name=a nodess=3", "override 2: nodess=3 … did you mean nodes?"),
]

ENTRY_POINTS = [
    Wrong(
        "script-missing",
        "run job.yaml entrypoint.script=trai.py",
        "there is no file … trai.py … did you mean train.py?",
    ),
    Wrong(
        "torchruns-option",
        "run --nproc-per-node 4 job.yaml",
        "--nproc-per-node … write workers.per_node=VALUE after the job file … only hpcelastic agent",
    ),
    Wrong("program-missing", "run wrong.yaml", "entrypoint.program: there is no program", entrypoint("program: ./no")),
    Wrong("script-syntax", "run job.yaml entrypoint.script=syntax.py", "syntax.py:1: invalid syntax"),
    Wrong(
        "module-missing", "run wrong.yaml", "entrypoint.module: there is no module 'nomod'", entrypoint("module: nomod")
    ),
    Wrong(
        "function-module-missing", "run wrong.yaml", "there is no module 'nomod'", entrypoint("function: 'nomod:work'")
    ),
    Wrong(
        "function-missing",
        "run wrong.yaml",
        "entrypoint.function … mod.py defines no 'word'",
        entrypoint("function: 'mod:word'"),
    ),
    Wrong(
        "function-no-colon",
        "run wrong.yaml",
        "entrypoint.function … 'mod' … module:function",
        entrypoint("function: 'mod'"),
    ),
    Wrong("submit-script-missing", "submit job.yaml entrypoint.script=trai.py", "did you mean train.py?"),
    Wrong("sbatch-script-syntax", "sbatch job.yaml entrypoint.script=syntax.py", "syntax.py:1: invalid syntax"),
]

RUNS = [
    Wrong(
        "directory-is-file",
        "run job.yaml run.directory=train.py",
        "cannot be created … train.py is a file; set run.directory",
    ),
    Wrong(
        "directory-unwritable",
        "run job.yaml run.directory=/proc/runs",
        "/proc/runs/r: cannot be created … set run.directory",
    ),
    Wrong("directory-unwritable-below", "run job.yaml run.directory=new/../mod.py/runs", "mod.py is a file"),
    Wrong(
        "directory-of-unknown-user",
        "run job.yaml run.directory=~no-such-user/runs",
        "~no-such-user/runs: this machine does not know the home directory ~no-such-user; write the whole path",
    ),
    Wrong("name-unusable", "run job.yaml run.name=a/b", "run.name … 'a/b' … letters, digits"),
    Wrong("resume-without-run", "run job.yaml --resume", "runs/r: there is no run to resume; remove --resume"),
    Wrong("nodes-below-min", "run job.yaml nodes=2..3 --nodes 1", "--nodes is 1, less than nodes.min, 2"),
    Wrong("nodes-zero", "run job.yaml --nodes 0", "--nodes is 0, less than nodes.min, 1"),
    Wrong("status-none", "status", "runs: contains no run … --in DIR"),
    Wrong("list-no-directory", "list nowhere", "nowhere: no such directory"),
]

AGENTS = [
    Wrong("agent-no-script", "agent", "nothing to run … script … --run-dir"),
    Wrong("agent-no-endpoint", "agent --nnodes 2 train.py", "--rdzv-endpoint is missing; write a directory"),
    Wrong(
        "agent-endpoint-host",
        "agent --rdzv-endpoint node1:29400 train.py",
        "'node1:29400', a host and a port … write a directory",
    ),
    Wrong(
        "agent-endpoint-of-unknown-user",
        "agent --rdzv-endpoint ~no-such-user/runs train.py",
        "does not know the home directory ~no-such-user",
    ),
    Wrong(
        "agent-endpoint-name",
        "agent --rdzv-endpoint node1 train.py",
        "--rdzv-endpoint is 'node1', but there is no such directory; write ./node1 for a new directory, or HOST:PORT",
    ),
    Wrong("agent-endpoint-file", "agent --rdzv-endpoint mod.py train.py", "'mod.py' … is a file; write a directory"),
    Wrong("agent-no-id", "agent --rdzv-endpoint ./runs --nnodes 2 train.py", "--rdzv-id is missing"),
    Wrong(
        "agent-bad-id", "agent --rdzv-endpoint ./runs --rdzv-id a/b train.py", "--rdzv-id is 'a/b' … letters, digits"
    ),
    Wrong("agent-nnodes", f"{AGENT} --nnodes two train.py", "--nnodes is 'two' … MIN:MAX"),
    Wrong("agent-nnodes-reversed", f"{AGENT} --nnodes 3:2 train.py", "is 3, more than nodes.max, 2"),
    Wrong(
        "agent-nproc",
        f"{AGENT} --nproc-per-node many train.py",
        "--nproc-per-node is 'many' … a number, auto, gpu, xpu, npu or cpu",
    ),
    Wrong("agent-nproc-zero", f"{AGENT} --nproc-per-node 0 train.py", "--nproc-per-node is 0 … 1 or more"),
    Wrong(
        "agent-conf-key", f"{AGENT} --rdzv-conf wait=3 train.py", "--rdzv-conf: 'wait' is not a known key … last_call"
    ),
    Wrong("agent-hangs-key", f"{AGENT} --hangs limit=3 train.py", "--hangs: 'limit' is not a known key … min_limit"),
    Wrong("agent-hangs-action", f"{AGENT} --hangs action=kill train.py", "--hangs: action is 'kill'; write … exclude"),
    Wrong("agent-hangs-number", f"{AGENT} --hangs factor=often train.py", "--hangs: factor is 'often', … number"),
    Wrong("agent-hangs-value", f"{AGENT} --hangs factor=0.5 train.py", "--hangs: factor is 0.5; … 1 or more"),
    Wrong("agent-conf-value", f"{AGENT} --rdzv-conf lease=nan train.py", "--rdzv-conf: lease is 'nan' … lease=5"),
    Wrong("agent-restarts", f"{AGENT} --max-restarts some train.py", "--max-restarts … 'some'"),
    Wrong("agent-redirects", f"{AGENT} --redirects all train.py", "--redirects is 'all'; write none, out, err or both"),
    Wrong("agent-interface", f"{AGENT} --interface 10.1.0.0/40 train.py", "--interface is '10.1.0.0/40' … ib0"),
    Wrong(
        "agent-interface-missing",
        "agent --rdzv-endpoint ./runs --rdzv-id r --interface ib99 train.py",
        "network.interface is ib99 … has no such interface with an address; it has … lo 127.0.0.1",
    ),
    Wrong("agent-total-time", f"{AGENT} --total-time 3d train.py", "--total-time is '3d'; write MINUTES … UNLIMITED"),
    Wrong("agent-no-time", f"{AGENT} --total-time 0:00 train.py", "--total-time is '0:00'; it must be more than 0"),
    Wrong("agent-max-requeues", f"{AGENT} --max-requeues -1 train.py", "--max-requeues is -1; it must be 0 or more"),
    Wrong("agent-warning", f"{AGENT} --warning 0 train.py", "--warning is 0.0; it must be 1 second or more"),
    Wrong(
        "agent-requeue-or-not",
        f"{AGENT} --total-time 60 --no-requeue train.py",
        "--total-time requeues the job, and --no-requeue forbids it; remove one",
    ),
    Wrong(
        "agent-redirects-rank",
        f"{AGENT} --tee 0:1,1:all train.py",
        "--tee is '0:1,1:all'; write none, out, err or both; or a value for each local rank: 0:out,1:both",
    ),
    Wrong("agent-local-ranks", f"{AGENT} --local-ranks-filter 0,x train.py", "--local-ranks-filter is '0,x' … 0,1,2"),
    Wrong("agent-start-method", f"{AGENT} --start-method thread train.py", "is 'thread'; write spawn, fork or forkse"),
    Wrong("agent-logs-specs", f"{AGENT} --logs-specs mine train.py", "--logs-specs is 'mine' … use --log-dir"),
    Wrong(
        "agent-signals", f"{AGENT} --signals-to-handle SIGXCPU train.py", "--signals-to-handle has 'SIGXCPU' … SIGUSR1"
    ),
    Wrong("agent-shutdown", f"{AGENT} --shutdown-timeout -1 train.py", "--shutdown-timeout is -1; it must be 0"),
    Wrong(
        "agent-shutdown-environment",
        f"{AGENT} train.py",
        "the environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT is 'soon'; write seconds",
        environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"},
    ),
    Wrong(
        "agent-default-number",
        f"{AGENT} train.py",
        "the environment variable PET_MAX_RESTARTS is 'x'; write a number, or unset it",
        environ={"PET_MAX_RESTARTS": "x"},
    ),
    Wrong(
        "agent-default-flag",
        f"{AGENT} train.py",
        "the environment variable PET_STANDALONE is 'yes'; write 1 or 0",
        environ={"PET_STANDALONE": "yes"},
    ),
    Wrong(
        "agent-standalone-nodes",
        "agent --standalone --nnodes 1:2 train.py",
        "--standalone runs on one node, but --nnodes allows 2",
    ),
    Wrong("agent-program-and-module", f"{AGENT} --no-python -m x", "--no-python … --module … remove one of them"),
    Wrong("agent-program-missing", f"{AGENT} --no-python ./no.sh", "./no.sh: there is no program … check its path"),
    Wrong("agent-program-in-path", f"{AGENT} --no-python no-such-program", "no such program in PATH; give its path"),
    Wrong("agent-program-rights", f"{AGENT} --no-python ./plain.sh", "plain.sh is not executable; chmod +x it"),
    Wrong("agent-numa", f"{AGENT} --numa-binding near train.py", "--numa-binding is 'near'; write node, socket"),
    Wrong(
        "agent-numa-no-gpus",
        f"{AGENT} --numa-binding node train.py",
        "workers.numa is node: NVIDIA's library NVML is not found … leave out",
        environ=NO_DRIVER,
    ),
    Wrong(
        "agent-own-gpus",
        f"{AGENT} --nproc-per-node 2 --virtual-local-rank train.py",
        "each of 2 workers a GPU of its own, and CUDA_VISIBLE_DEVICES is '3'; request as many",
        environ={"CUDA_VISIBLE_DEVICES": "3"},
    ),
    Wrong(
        "agent-no-xpu",
        f"{AGENT} --nproc-per-node xpu train.py",
        "--nproc-per-node is xpu, but torch finds no such device",
    ),
    Wrong("agent-script-missing", f"{AGENT} trai.py", "trai.py: no such script"),
    Wrong(
        "agent-unknown-flag", f"{AGENT} --nodes 2 train.py", "unrecognized arguments: --nodes … did you mean --nnodes?"
    ),
    Wrong(
        "agent-run-dir", "agent --run-dir empty", "empty/config.json: no such file; name a directory made by hpcelastic"
    ),
]

BESIDE_A_RUN = [
    Wrong(
        "name-taken",
        "run job.yaml",
        "runs/r: a run with this name exists already (succeeded … --resume … run.name=NEW",
    ),
    Wrong("name-taken-submit", "submit job.yaml", "runs/r: a run with this name exists already"),
    Wrong("status-unknown", "status s", "s: no such run … runs; the known runs are r"),
    Wrong("logs-unknown", "logs s", "s: no such run … runs; the known runs are r"),
    Wrong("logs-unknown-rank", "logs r --rank 7", "r has no log of rank 7; the logs are of ranks 0..0"),
    Wrong("cancel-unknown", "cancel s", "s: no such run … runs; the known runs are r"),
]
"""In a directory with a run named r that has succeeded."""

BESIDE_AN_AGENTS_RUN = [
    Wrong(
        "agent-other-settings",
        f"{AGENT} --max-restarts 2 train.py",
        "restarts.max = 0 (here 2) … the same settings",
    ),
]
"""In a directory with a run of agents without a job file."""

COMMAND_LINES = [
    Wrong("no-command", "", "hpcelastic: … required: COMMAND … --help"),
    Wrong("unknown-command", "staus", "staus: no such command; did you mean status?"),
    Wrong("no-file", "run", "required: FILE; see hpcelastic run --help"),
    Wrong("unknown-flag", "run job.yaml --nodez 3", "--nodez 3; did you mean --nodes?"),
    Wrong("flag-without-value", "run job.yaml --nodes", "--nodes: expected one argument"),
    Wrong("flag-not-a-number", "logs r --rank first", "--rank … 'first'"),
    Wrong("flag-not-finite", "stacks r --timeout nan", "--timeout: write a number of seconds, more than 0, not 'nan'"),
    Wrong("config-unknown-action", "config sho job.yaml", "'sho' … 'show'"),
]

SLURM = [
    Wrong(
        "slurm-not-installed",
        "submit job.yaml",
        "sbatch: not found … hpcelastic run",
        environ={"PATH": "/nonexistent"},
        status=1,
    ),
    pytest.param(
        Wrong(
            "slurm-unreachable",
            "submit job.yaml run.directory=new/runs",
            "sbatch refused the job … Unable to contact slurm controller",
            {"slurm.conf": NO_CONTROLLER},
            environ={"SLURM_CONF": "slurm.conf"},
            status=1,
        ),
        marks=pytest.mark.skipif(shutil.which("sbatch") is None, reason="sbatch is not installed"),
    ),
]


def case(wrong: object) -> object:
    return pytest.param(wrong, id=wrong.id) if isinstance(wrong, Wrong) else wrong


@pytest.mark.parametrize("wrong", [case(w) for w in JOB_FILES + ENTRY_POINTS + RUNS + AGENTS + COMMAND_LINES + SLURM])
def test_a_wrong_input_is_refused_and_leaves_nothing(wrong: Wrong, shell: Shell) -> None:
    shell.write({**FILES, **wrong.files})
    refuses(shell, wrong)


@pytest.mark.parametrize(
    ("first", "cases"),
    [
        pytest.param("run job.yaml", BESIDE_A_RUN, id="run of a job"),
        pytest.param(f"{AGENT} train.py", BESIDE_AN_AGENTS_RUN, id="run of an agent"),
    ],
)
def test_a_wrong_input_beside_a_run_is_refused_and_leaves_nothing(first: str, cases: list[Wrong], shell: Shell) -> None:
    shell.write(FILES)
    done = shell.hpcelastic(*shlex.split(first))
    assert done.returncode == 0, done.stderr
    for wrong in cases:
        refuses(shell, wrong)


def refuses(shell: Shell, wrong: Wrong) -> None:
    before = shell.listing()
    done = shell.command(*shlex.split(wrong.command), environ=wrong.environ)
    assert done.returncode == wrong.status, done
    assert_says(done.stderr, wrong.words)
    command = wrong.command.partition(" ")[0]
    expected = f"hpcelastic {command}: " if command and wrong.id != "unknown-command" else "hpcelastic: "
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == wrong.lines, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert shell.listing() == before
    assert shell.processes() == {}


FAILING = [
    (
        "script-exits-3",
        "run job.yaml entrypoint.script=three.py",
        "root cause: rank 0 on node0 in round 1: exit status 3 … log: … rank-00000.err",
    ),
    (
        "script-raises",
        "run job.yaml entrypoint.script=raises.py",
        'root cause: rank 0 on node0 … ValueError: no data here … log: … raises.py", line 1',
    ),
    (
        "function-lock",
        "run wrong.yaml",
        "root cause: rank 0 on node0 … the return value cannot be pickled … return plain values",
    ),
    (
        "agent-script-exits-3",
        f"{AGENT} {QUICK} --node-name n7 three.py",
        "root cause: rank 0 on n7 in round 1: exit status 3",
    ),
    (
        "agent-script-syntax",
        f"{AGENT} {QUICK} --node-name n7 -r 3 syntax.py",
        'root cause: rank 0 on n7 … exit status 1 … log: … syntax.py", line 1',
    ),
    ("agent-module-missing", f"{AGENT} {QUICK} -r 3 -m nomod", "root cause: rank 0 … log: … No module named nomod"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "words"), [pytest.param(*row[1:], id=row[0]) for row in FAILING])
def test_a_failed_run_reports_the_reason_and_ends(command: str, words: str, shell: Shell) -> None:
    shell.write({**FILES, **entrypoint("function: 'mod:lock'")})
    before = shell.listing()
    done = shell.hpcelastic(*shlex.split(command))
    assert done.returncode == 1, done
    assert_says(done.stderr, words)
    assert not re.search(r"^Traceback", done.stderr, re.MULTILINE), "a traceback of hpcelastic"
    assert {path for path in shell.listing() - before if not path.startswith("runs/r/")} == {"runs", "runs/r"}
    status = shell.hpcelastic("status", "r")
    assert status.returncode == 1 and status.stdout.count("failed: rank 0 failed on") == 1
    assert shell.processes() == {}


SUBMITS = {
    "function-not-picklable": ("lambda lock=threading.Lock(): lock", "cannot be pickled … lock … inside the function"),
    "arguments-not-picklable": ("print, threading.Lock()", "cannot be pickled … open files … inside the function"),
    "arguments-for-a-file": ("'job.yaml', 3", "only a function takes arguments"),
    "mapping-unknown-key": (
        "{'entrypoint': {'script': 'train.py'}, 'node': 1}",
        "node: no such key; did you mean nodes?",
    ),
    "keyword-unknown-key": ("'job.yaml', slurm__partitio='a'", "slurm.partitio … did you mean slurm.partition?"),
    "executor-unknown": ("'job.yaml', executor='cloud'", "executor is 'cloud'; write slurm or local"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "words"), [pytest.param(*row, id=id) for id, row in SUBMITS.items()])
def test_submit_from_python_is_refused_and_leaves_nothing(arguments: str, words: str, shell: Shell) -> None:
    arguments += "" if "executor" in arguments else ", executor='local'"
    shell.write({**FILES, "submit.py": f"import threading\nimport hpcelastic\n\nhpcelastic.submit({arguments})\n"})
    before = shell.listing()
    done = shell.python("submit.py")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hpcelastic.errors.ConfigError: ")
    assert_says(last, words)
    assert shell.listing() == before
    assert shell.processes() == {}


STEADY = "import pathlib, time\nwhile not pathlib.Path('finish').exists():\n    time.sleep(0.02)\n"


def test_a_second_agent_of_the_same_name_is_refused_and_the_first_continues(shell: Shell) -> None:
    shell.write({"train.py": STEADY})
    first = shell.agent("--node-name", "n0", "train.py")
    shell.pid_of("-u train.py")
    second = shell.agent("--node-name", "n0", "train.py")
    _, stderr = second.communicate()
    assert second.returncode == 2
    assert_says(stderr, f"hpcelastic agent: node n0 is in this run already, as process {first.pid} … --node-name")
    assert len(stderr.splitlines()) == 1
    shell.write({"finish": ""})
    assert first.wait(timeout=30) == 0, first.communicate()


@pytest.mark.slow
def test_resuming_an_active_run_is_refused_without_an_effect(shell: Shell) -> None:
    shell.write({"job.yaml": JOB, "train.py": STEADY})
    first = shell.start("-m", "hpcelastic", "run", "job.yaml")
    shell.pid_of("-u ")
    eventually(lambda: "running" in shell.hpcelastic("list").stdout)
    done = shell.hpcelastic("run", "job.yaml", "--resume")
    assert done.returncode == 2
    assert_says(done.stderr, "runs/r: the run has not ended: process … end it first: hpcelastic cancel")
    time.sleep(0.3)  # longer than the agents' poll
    shell.write({"finish": ""})
    assert first.wait(timeout=30) == 0
    assert "round 1 " in shell.hpcelastic("list").stdout


def assert_says(text: str, words: str) -> None:
    rest = text
    for part in words.split(" … "):
        assert part in rest, f"no {part!r} in {text}"
        rest = rest[rest.index(part) + len(part) :]
