"""The explanation of injected faults: the cause, the part at fault, the node and the rank are those of the injector.

`hpcelastic why` gets a copy of the run directory only. The weekly suite injects more than 400 faults of more than 45
kinds; a part of them runs at night.
"""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcelastic.api.run import Run as FinishedRun
from hpcelastic.api.why import Why
from hpcelastic.health.known_causes import CAUSES, Certainty
from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run
from tests.faults import kinds, test_hangs
from tests.health.known_failures import SAMPLES

SEEDS = 10


@dataclass(frozen=True)
class Truth:
    """What the injector knows about a fault."""

    blame: str
    id: str = ""
    """The id of the cause; empty if more than one is right."""


WORKER_TRUTHS = {
    "an exception": Truth("program", "exception"),
    "an assertion": Truth("program", "exception"),
    "a missing module": Truth("program", "import"),
    "a missing file": Truth("program", "missing-file"),
    "a full disk": Truth("filesystem", "filesystem-full"),
    "too many open files": Truth("program", "open-files"),
    "no memory left in Python": Truth("program", "memory-allocation"),
    "an endless recursion": Truth("program", "recursion"),
    "another shape": Truth("program", "shapes"),
    "a label out of range": Truth("program"),
    "a process of a pool that died": Truth("program"),
    "a message of a broken GPU": Truth("node", "cuda-ecc"),
    "an exit status": Truth("program"),
    "an exit of the interpreter": Truth("program"),
    "a segmentation fault": Truth("program", "segmentation-fault"),
    "an abort": Truth("program", "abort"),
    "SIGKILL": Truth("unknown", "signal"),
    "a bus error": Truth("program", "bus-error"),
    "an illegal instruction": Truth("program", "illegal-instruction"),
    "an interrupt": Truth("user", "interrupt"),
}

NODE_TRUTHS = {
    "its agent is killed": Truth("node", "processes-gone"),
    "all its processes are killed": Truth("node", "processes-gone"),
    "its agent is stopped": Truth("node"),
    "all its processes are stopped": Truth("node"),
    "its agent is asked to end": Truth("scheduler", "leave"),
    "its worker is killed": Truth("unknown", "signal"),
}

HANG_TRUTHS = {"stop_itself": Truth("node", "hang-stopped")}
"""All other hangs are faults of the program."""

MESSAGES = {
    cause.id: SAMPLES[cause.id][0]
    for cause in CAUSES
    if cause.certainty is not Certainty.ECHO and "\n" not in SAMPLES[cause.id][0]
}
"""A message of each known cause, which an exception of the rank has."""


def seeds(*names: str) -> list[object]:
    """Return each name with each seed. All run each week, and a few at night."""
    return [
        pytest.param(name, seed, marks=pytest.mark.weekly if seed else pytest.mark.slow, id=f"{name}-{seed}")
        for name in names
        for seed in range(SEEDS)
    ]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path / "site") as made:
        made.directory.mkdir(exist_ok=True)
        yield made


def explained(shell: Shell, tmp_path: Path) -> Why:
    """Return why round 1 has ended, from a copy of the run directory."""
    copy = tmp_path / "copy"
    eventually(lambda: copied(shell.directory / "runs" / "r", copy))
    return FinishedRun(copy).why(1)


def copied(directory: Path, copy: Path) -> bool:
    """Copy a run directory. Return False if files of a run that goes on were renamed meanwhile."""
    try:
        shutil.copytree(directory, copy)
    except shutil.Error:
        shutil.rmtree(copy)
        return False
    return True


def node_of(run: Run, rank: int) -> str:
    """Return the node of a rank in round 1."""
    (node,) = {e["node"] for e in run.events("workers started") if e["round"] == 1 and str(rank) in e["pids"]}
    return str(node)


def check(found: Why, truth: Truth, node: str, rank: int | None) -> None:
    assert (found.blame, found.node, found.rank) == (truth.blame, node, rank), found
    assert not truth.id or found.id == truth.id, found
    assert found.known and found.remedy and found.chain


def injected(shell: Shell, tmp_path: Path, code: str, seed: str) -> tuple[Why, str, int]:
    """Let a random rank execute ``code`` in a random step. Return the explanation, and the node and the rank."""
    chance = random.Random(seed)
    culprit, step = chance.randrange(kinds.NODES), chance.randint(3, 60)
    arguments = (str(culprit), str(step), code)
    run = Run(shell, kinds.SCRIPT, kinds.NODES, "--redirects=3", script_arguments=arguments)
    run.await_workers(kinds.NODES)
    run.finish()
    return explained(shell, tmp_path), node_of(run, culprit), culprit


@pytest.mark.parametrize(("kind", "seed"), seeds(*WORKER_TRUTHS))
def test_a_fault_of_a_worker(shell: Shell, tmp_path: Path, kind: str, seed: int) -> None:
    found, node, rank = injected(shell, tmp_path, kinds.WORKER_FAULTS[kind].code, f"{kind}/{seed}")
    check(found, WORKER_TRUTHS[kind], node, rank)


@pytest.mark.weekly
@pytest.mark.parametrize("id", MESSAGES)
def test_a_failure_with_a_known_message(shell: Shell, tmp_path: Path, id: str) -> None:
    found, node, rank = injected(shell, tmp_path, f"raise RuntimeError({MESSAGES[id]!r})", id)
    (cause,) = [cause for cause in CAUSES if cause.id == id]
    check(found, Truth(cause.blame.value, id), node, rank)
    assert found.certainty == cause.certainty.value


@pytest.mark.parametrize(("kind", "seed"), seeds(*NODE_TRUTHS))
def test_a_fault_of_a_node(shell: Shell, tmp_path: Path, kind: str, seed: int) -> None:
    fault, chance = kinds.NODE_FAULTS[kind], random.Random(f"{kind}/{seed}")
    arguments = (str(kinds.CULPRIT), str(kinds.STEP), "")
    run = Run(shell, kinds.SCRIPT, kinds.NODES, "--redirects=3", script_arguments=arguments)
    run.await_round(1, kinds.NODES)
    node = run.agents[kinds.CULPRIT].node_name
    rank = next(int(rank) for e in run.events("workers started") if e["node"] == node for rank in e["pids"])
    eventually(lambda: chance.random() < 0.3)
    fault.inject(run)
    run.await_workers(kinds.NODES if fault.returns else kinds.NODES - 1)
    found = explained(shell, tmp_path)
    check(found, NODE_TRUTHS[kind], node, rank if fault.returns else None)


@pytest.mark.parametrize(("kind", "seed"), seeds(*(case.fault for case in test_hangs.HANGS)))
def test_a_hang(shell: Shell, tmp_path: Path, kind: str, seed: int) -> None:
    chance = random.Random(f"{kind}/{seed}")
    (case,) = [case for case in test_hangs.HANGS if case.fault == kind]
    culprit, step = chance.randrange(1, 4), chance.randint(3, 60)
    arguments = (kind, str(culprit), str(step), "marks")
    run = Run(shell, test_hangs.SCRIPT, 2, "--hangs", test_hangs.LIMITS, workers=2, script_arguments=arguments)
    run.await_workers(4)
    found, node = explained(shell, tmp_path), node_of(run, culprit)
    run.finish()
    truth = HANG_TRUTHS.get(kind, Truth("program", f"hang-{case.verdict}"))
    if case.unnamed:
        assert (found.blame, found.id, found.rank) == (truth.blame, truth.id, None), found
    else:
        check(found, truth, node, culprit)
