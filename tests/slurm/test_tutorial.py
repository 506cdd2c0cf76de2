"""The commands of the tutorial's section on commands, executed in order as a new user would."""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcelastic.protocol.events import WorkersPoll
from tests.cluster import SlurmCluster
from tests.docs.code_blocks import blocks_of, commands

ROOT = Path(__file__).parents[2]
ENDED = 240.0
"""Time limit for one command in seconds. It is long, because the machine may be busy with other tests."""

PAGE = ROOT / "docs" / "tutorials" / "first_job.md"
BLOCKS = [(block.language, block.text) for block in blocks_of(PAGE)]

# The adaptations of a user to the cluster: it has four nodes, each with one GPU that is a fake.
FITTED = {
    "gpus_per_node: 8": "gpus_per_node: 1",
    "cpus_per_node: 64": "cpus_per_node: 1",
    "memory: 200G": "memory: 1G",
    "n17": "n2",
    "--nodes 6": "--nodes 3",
}
LINE = {
    "--nproc-per-node 8": "--nproc-per-node 1",
    "train.py --lr 0.1": "examples/digits/train.py --lr 0.001 --epochs 2",
}
PARTITION = "PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def fitted(text: str, edits: dict[str, str]) -> str:
    for old, new in edits.items():
        text = text.replace(old, new)
    return text


class Terminal:
    """A shell on the login node, in a checkout with hpcelastic installed."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.path = cluster.path / "checkout"
        self.path.mkdir()
        (self.path / "examples").symlink_to(ROOT / "examples")
        scratch = cluster.path / "scratch"
        scratch.mkdir()
        path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
        self._environ = {**cluster.env, "PATH": path, "SCRATCH": str(scratch), "HOME": str(cluster.path)}

    def types(self, line: str, *, fails: bool = False) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.path, env=self._environ, capture_output=True, text=True, timeout=ENDED
        )
        assert (done.returncode != 0) == fails, f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def until_says(self, line: str, pattern: str) -> str:
        deadline = time.monotonic() + ENDED
        while not re.search(pattern, output := self.types(line)):
            assert time.monotonic() < deadline, f"waited {ENDED:g} s for {pattern!r} from {line}:\n{output}"
            time.sleep(0.3)
        return output

    def until_trains(self) -> None:
        """Wait until a round runs and has trained for an epoch."""
        status = self.until_says("hpcelastic status digits", "phase      running")
        (round,) = re.findall(r"^round +(\d+)", status, re.MULTILINE)
        self.until_says("hpcelastic logs digits", rf"\] round {round}, \d ranks: epoch")
        # An agent publishes with a renewal of its lease, seconds later, that workers poll should_stop(). Commands need
        # this.
        asks = rf'"{WorkersPoll.kind}".*"round": ?{round}\b'
        self.until_says("cat runs/digits/events/*.jsonl", asks)


@pytest.fixture
def terminal(fresh_cluster: "type[SlurmCluster]") -> Terminal:
    return Terminal(fresh_cluster(nodes=4, gpus=1, extra_conf=PARTITION))


def test_the_commands_of_a_run(terminal: Terminal) -> None:
    """Commands that need a run that trains get one. Its duration is that of the job file."""
    (job,) = (text for kind, text in BLOCKS if kind == "yaml")
    job = fitted(job, FITTED).replace("train.py}", "train.py, args: [--step-time, 0.05, --epochs, 60]}")
    (terminal.path / "job.yaml").write_text(job)
    (block,) = (text for _, text in BLOCKS if "hpcelastic drain" in text)
    output: dict[str, str] = {}
    for line in commands(fitted(block, FITTED)):
        command = shlex.split(line)[1]
        if command == "logs":
            line = f"timeout {ENDED:g} {line} | grep -m 1 epoch"  # it would follow the run to its end
        if command in ("scale", "drain", "checkpoint"):
            terminal.until_trains()
        output[command] = terminal.types(line, fails=command == "forgive")  # the node has no incident
        if line.endswith("submit job.yaml"):
            terminal.until_says("hpcelastic status digits", "running")
            terminal.until_says("hpcelastic logs digits", "epoch")
    assert "nodes: 2..4" in output["config"] and "# job.yaml:" in output["config"]
    assert "world size 4" in output["status"]
    assert re.search(r"^\[1\.0\] round 1, 4 ranks: epoch ", output["logs"], re.MULTILINE)
    assert "digits has closed" in output["cancel"]
    assert "n2: no incident is recorded" in output["forgive"]
    terminal.until_says("hpcelastic status digits", "running")
    terminal.until_says("hpcelastic logs digits", "resumed at step")
    terminal.types("hpcelastic cancel digits")
    terminal.cluster.wait_idle()


def test_a_line_of_torchrun(terminal: Terminal) -> None:
    (line,) = (commands(text)[0] for _, text in BLOCKS if "hpcelastic agent" in text)
    (terminal.path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --no-kill\n{fitted(line, LINE)}\n")
    job = terminal.types("sbatch --parsable --output=log job.sh").strip()
    terminal.cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    assert "test accuracy" in (terminal.path / "log").read_text()


def test_the_doctor(terminal: Terminal) -> None:
    (line,) = (commands(text)[-1] for _, text in BLOCKS if "hpcelastic doctor" in text)
    output = terminal.types(f"mkdir -p runs; {line}")
    assert "n1" in output and "n2" in output
