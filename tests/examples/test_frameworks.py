"""The scripts of examples/frameworks: a node is lost, and they continue from the newest checkpoint.

The scripts have no code for the tests, so these tests read their output, like a user.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcelastic.agent.environment import RunFacts, worker_environment
from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.api.timeline import timeline
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "lightning.yaml"
TIMEOUT = 150.0
"""Time limit for each expected event in seconds. It is long, because the machine may be busy."""

SCRIPTS = {
    "train_lightning.py": (["--epochs", 8], ["torch", "lightning.pytorch"]),
    "train_accelerate.py": (["--epochs", 8], ["torch", "accelerate"]),
    "train_transformers.py": (["--steps", 180], ["torch", "transformers.trainer"]),
    "train_fsdp.py": (["--steps", 10000], ["torch", "torch.distributed.checkpoint"]),
    "elastic_lightning.py": (["--epochs", 1000], ["torch", "lightning.pytorch"]),
    "elastic_lightning.py --sharded": (["--epochs", 1000], ["torch", "lightning.pytorch"]),
    "elastic_transformers.py": (["--steps", 10000], ["torch", "transformers.trainer"]),
    "elastic_accelerate.py": (["--steps", 10000], ["torch", "accelerate"]),
}
"""By script, and its options: its duration of training, and the modules that its nodes import."""

ELASTIC = [script for script in SCRIPTS if script.startswith("elastic_")]
"""The scripts with checkpoints of hpcelastic."""


def nightly(*scripts: str, weekly: Iterable[str]) -> list[Any]:
    """Return parameters: ``scripts``, which are tried each night, and the others of ``weekly``."""
    others = [pytest.param(script, marks=pytest.mark.weekly) for script in weekly if script not in scripts]
    return [*scripts, *others]


class Mark(NamedTuple):
    """A line by which a script reports its progress."""

    round: int
    resumed: bool
    at: int
    """Epoch or step."""

    ranks: int
    state: str
    """For example the loss on all test data. It is equal if the model is equal."""


class Stage:
    """Two agents on this machine, each like a node, with a script of the examples."""

    def __init__(self, script: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        last_call = 2 if script in ELASTIC else 60
        monkeypatch.chdir(ROOT)
        length, preload = SCRIPTS[script]
        script, *options = script.split()
        args = ["--output", str(directory / "output"), *length, "--step-time", 0.05, *options]
        overrides = {
            "run": {"name": "r", "directory": str(directory)},
            "entrypoint": {"script": f"examples/frameworks/{script}", "args": args},
            "workers": {"per_node": 1, "preload": preload},
            "environment": {"OMP_NUM_THREADS": 1},
            "rendezvous": {"last_call": last_call},
        }
        paths = prepare(resolve(CONFIG, [f"{key}={json.dumps(value)}" for key, value in flat(overrides)]))
        self.directory = directory
        self.nodes = LocalNodes(paths, 2)
        self.run = Run(paths.root)

    def marks(self) -> list[Mark]:
        found = (LINE.match(line) for line in self.run.logs())
        return [Mark(int(m[1]), m[2] == "resumed", int(m[3]), int(m[4]), m[5]) for m in found if m]

    def until(self, what: str, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not look():
            log = "\n".join([*timeline(self.run), *self.run.logs()])
            assert time.monotonic() < deadline, f"waited {TIMEOUT:g} s for {what}:\n{log}"
            assert self.run.status().phase != "failed", f"{self.run.status().reason}:\n{log}"
            time.sleep(0.05)

    def until_trained(self, count: int, ranks: int) -> None:
        """Wait until so many ranks have progressed so far in the newest round, and it has ``count`` checkpoints."""

        def come_so_far() -> bool:
            marks = self.marks()
            return sum(not m.resumed and m.ranks == ranks and m.round == marks[-1].round for m in marks) > count

        self.until(f"checkpoint {count} of {ranks} ranks", come_so_far)

    def workers(self) -> list[int]:
        """Return the processes that run the script."""
        lines = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
        return sorted(pid for pid, path in lines.items() if self._runs_the_script(path))

    def _runs_the_script(self, path: Path) -> bool:
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:  # it has ended
            return False
        return words[1:2] == ["-u"] and words[4:5] == [str(self.directory / "output")]


LINE = re.compile(
    r"\[(\d+)\.0\] (resumed|epoch|saved) ?(?:after epoch |in epoch |at step |step )?(\d+): (\d+) ranks, (.*)"
)


SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "3",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n1",
    "PMI_RANK": "1",
    "PMI_SIZE": "3",
}
"""The second of three tasks that `srun --mpi=pmi2` starts: the agents."""

ASKS = """
import os

from accelerate.utils.environment import get_cpu_distributed_information
from lightning.pytorch import Trainer


def lightning() -> None:
    trainer = Trainer(accelerator="cpu", devices=4, num_nodes=3, strategy="ddp", logger=False, barebones=True)
    found = trainer.strategy.cluster_environment
    ranks = found.world_size(), found.global_rank(), found.local_rank(), found.node_rank()
    print(type(found).__name__, *ranks, "starts none" if found.creates_processes_externally else "starts its own")


lightning()
cpu = get_cpu_distributed_information()
print("Accelerate", cpu.world_size, cpu.rank, cpu.local_rank, cpu.local_world_size)
del os.environ["TORCHELASTIC_RUN_ID"]
lightning()
"""


def test_within_srun_they_use_torchruns_variables() -> None:
    """The last line shows what a worker without TORCHELASTIC_RUN_ID would use: its agent's SLURM task."""
    part = Assignment(5, 1, 3, 2, 4, 7, "n0.net", 29500, "", 2, 7)
    facts = RunFacts(RunPaths(Path("/runs/r")), "r", "n1@0-ab", 3)
    environ = worker_environment({**os.environ, **SRUN}, part, 2, facts, {})
    output = subprocess.run([sys.executable, "-c", ASKS], env=environ, capture_output=True, text=True, timeout=TIMEOUT)
    assert output.stdout.splitlines() == [
        "TorchElasticEnvironment 7 4 2 1 starts none",
        "Accelerate 7 4 2 4",
        "SLURMEnvironment 3 1 0 1 starts none",
    ], output.stderr


def flat(tree: dict[str, dict[str, object]]) -> Iterator[tuple[str, object]]:
    for section, keys in tree.items():
        yield from ((f"{section}.{key}", value) for key, value in keys.items())


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Stage]]:
    made: list[Stage] = []

    def start(script: str) -> Stage:
        made.append(Stage(script, tmp_path, monkeypatch))
        return made[-1]

    yield start
    for each in made:
        for node in each.nodes.alive():
            each.nodes.kill_node(node)


@pytest.mark.parametrize(
    "script", nightly("train_lightning.py", weekly=["train_accelerate.py", "train_transformers.py"])
)
def test_it_continues_when_the_node_of_rank_0_is_lost(script: str, stage: Callable[[str], Stage]) -> None:
    run = stage(script)
    run.nodes.start()
    run.until_trained(1, ranks=2)
    assert [node.ranks for node in run.run.status().nodes if node.name == "node0"] == ["0"]
    run.nodes.kill_node(0)
    run.until("the end", lambda: run.run.status().phase == "succeeded")
    check(run.marks(), worlds=[2, 1])
    (_, length), _ = SCRIPTS[script]
    assert any(re.search(rf"\.0\] trained {length} (epochs|steps)", line) for line in run.run.logs())
    assert run.run.status().restarts == 0
    assert not [log for log in run.run.directory.glob("agent-*.log") if "fresh interpreter" in log.read_text()]


@pytest.mark.parametrize("script", nightly("elastic_accelerate.py", weekly=ELASTIC))
def test_a_newcomer_costs_no_step(script: str, stage: Callable[[str], Stage]) -> None:
    run = stage(script)
    run.nodes.start_node(0)
    run.until_trained(1, ranks=1)
    run.nodes.start_node(1)
    run.until_trained(1, ranks=2)
    last = [mark for mark in run.marks() if mark.ranks == 1][-1]
    first = next(mark for mark in run.marks() if mark.ranks == 2)
    assert first.resumed
    assert first.state == last.state
    stops = [event["reason"] for event in run.run.events() if event["event"] == "workers stopped"]
    assert stops == ["they were asked to stop"], timeline(run.run)
    workers = run.workers()
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)  # which SLURM sends to all processes of a job; the agents resolve it
    run.until_trained(3, ranks=2)
    assert run.workers() == workers
    assert not [line for line in run.run.logs() if "Received SIGTERM" in line]  # Lightning's message


@pytest.mark.parametrize("script", nightly("train_fsdp.py", "elastic_lightning.py --sharded", weekly=ELASTIC))
def test_checkpoints_are_loaded_with_another_number_of_ranks(script: str, stage: Callable[[str], Stage]) -> None:
    run = stage(script)
    run.nodes.start()
    run.until_trained(1, ranks=2)
    run.nodes.kill_node(0)
    run.until_trained(1, ranks=1)
    run.nodes.start_node(0)
    run.until_trained(1, ranks=2)
    check(run.marks(), worlds=[2, 1, 2])
    assert run.run.status().restarts == 0


@pytest.mark.parametrize("script", nightly("elastic_transformers.py", weekly=ELASTIC))
def test_the_position_in_the_data_does_not_depend_on_the_number_of_ranks(
    script: str, stage: Callable[[str], Stage], tmp_path: Path
) -> None:
    """A training with other samples in any step would have another loss."""
    run = stage(script)
    run.nodes.start()
    run.until_trained(1, ranks=2)
    run.nodes.kill_node(0)
    run.until_trained(2, ranks=1)
    run.nodes.kill_node(1)
    losses = {mark.at: loss(mark.state) for mark in run.marks()}
    name, *options = script.split()
    (unit, _), _ = SCRIPTS[script]
    length = max(losses) // 44 + 1 if unit == "--epochs" else max(losses) + 1
    arguments = [f"examples/frameworks/{name}", "--output", tmp_path / "alone", unit, length, *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environ, capture_output=True, text=True, timeout=2 * TIMEOUT
    )
    found = (LINE.match(f"[0.0] {line}") for line in alone.stdout.splitlines())
    undisturbed = {int(m[3]): loss(m[5]) for m in found if m}
    assert losses == {step: pytest.approx(undisturbed.get(step), abs=0.001) for step in losses}, alone.stderr


def loss(state: str) -> float:
    return float(re.findall(r"loss ([\d.]+)", state)[0])


def check(marks: list[Mark], worlds: list[int]) -> None:
    """Check that each round continued from the state that the previous one had saved, with equal values."""
    rounds = sorted({mark.round for mark in marks})
    assert [next(mark.ranks for mark in marks if mark.round == number) for number in rounds] == worlds
    for before, number in pairwise(rounds):
        first, second = [mark for mark in marks if mark.round == number][:2]
        saved = {mark.at: mark.state for mark in marks if mark.round == before and not mark.resumed}
        assert first.resumed
        assert first.state == saved[first.at] != second.state
        assert not second.resumed
        assert second.at > first.at >= sorted(saved)[-2]  # the last printed line may have no checkpoint
