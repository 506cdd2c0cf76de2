"""The number of files of a run grows with its nodes and its rounds, and not with time."""

import itertools
import time
from pathlib import Path

import hpcelastic
from hpcelastic.api.run import Run
from hpcelastic.api.steering import checkpoint
from hpcelastic.storage import files
from tests.api.jobs import WAITS, job
from tests.cli.shell import Shell, eventually

NODES, PER_NODE = 2, 2

FOR_A_RUN = 20
"""Maximum number of files and directories of a run, without those of its nodes and rounds."""

FOR_A_NODE = 8
"""Maximum number of those of a node: its lease, its event log, the log of its agent, the test of the filesystem."""

FOR_A_ROUND = 3
"""Maximum number of those of a round: two versions of the register, of which the last 500 stay, and the directory of
its logs."""

FOR_A_WORKER = 2
"""Those of a worker in a round: its standard output and its standard error."""

FOR_WORK_FRACTIONS = 1 + NODES
"""Their directory, and a file for each node. They appear some time after the start of a round."""

FOR_A_RENEWAL = 2
"""A new lease, and a new file of work fractions, appear before the old one is removed."""


def names(run: Run) -> set[Path]:
    """The names in the directory of the run. Drafts exist for an instant."""
    return {path for path in run.directory.rglob("*") if not path.name.startswith(files.DRAFT_PREFIX)}


def count_in_round(run: Run, round: int) -> int:
    """Return the number of names once all workers of the round write."""
    logs = NODES * PER_NODE * FOR_A_WORKER
    eventually(lambda: run.status().phase == "running" and run.status().round == round)
    eventually(lambda: len(list(run.directory.glob(f"logs/round-{round:04d}/*"))) == logs)
    return len(names(run))


def test_the_number_of_files_is_bounded(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    document = job(nodes=NODES, restarts={"max": 0})
    document["workers"] = {**document["workers"], "per_node": PER_NODE}
    run = hpcelastic.submit(document, executor="local")
    counts = [count_in_round(run, 1)]
    for round in (2, 3):
        checkpoint(run.reader, anyway=True)
        counts.append(count_in_round(run, round))
    assert counts[0] <= FOR_A_RUN + NODES * FOR_A_NODE + FOR_A_ROUND + NODES * PER_NODE * FOR_A_WORKER
    for before, after in itertools.pairwise(counts):
        assert after - before <= FOR_A_ROUND + NODES * PER_NODE * FOR_A_WORKER
    for _ in range(10):  # several renewals of each lease
        time.sleep(0.4)
        assert len(names(run)) <= counts[-1] + FOR_WORK_FRACTIONS + NODES * FOR_A_RENEWAL
    shell.write({"finish": ""})
    run.wait(60)


def test_the_logs_of_old_rounds_are_removed(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    run = hpcelastic.submit({**job(nodes=1, restarts={"max": 0}), "logs": {"keep_rounds": 2}}, executor="local")
    for round in (1, 2, 3, 4):
        eventually(lambda round=round: run.status().round == round and run.status().phase == "running")  # type: ignore[misc]
        eventually(lambda round=round: [*run.directory.glob(f"logs/round-{round:04d}/*.out")])  # type: ignore[misc]
        if round < 4:
            checkpoint(run.reader, anyway=True)
    eventually(lambda: not [*run.directory.glob("logs/round-000[12]")])
    shell.write({"finish": ""})
    run.wait(60)
    assert sorted(path.name for path in run.directory.glob("logs/round-*")) == ["round-0003", "round-0004"]
