"""Each kind of fault in a real run: the verdict, the rank and the node that are named, and what the run does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run
from tests.faults.kinds import (
    CULPRIT,
    NODE_FAULTS,
    NODES,
    SCRIPT,
    STEP,
    WORKER_FAULTS,
    NodeFault,
    WorkerFault,
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def start(shell: Shell, code: str) -> Run:
    return Run(shell, SCRIPT, NODES, script_arguments=(str(CULPRIT), str(STEP), code))


def ends(run: Run) -> list[dict[str, Any]]:
    """Return the reasons for which round 1 has ended, each once."""
    found = {event["version"]: event for event in run.events("state changed")}
    return [event for _, event in sorted(found.items()) if (event["phase"], event["round"]) == ("joining", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", WORKER_FAULTS.values(), ids=WORKER_FAULTS)
def test_a_fault_of_a_worker_is_named_and_the_run_continues(shell: Shell, fault: WorkerFault) -> None:
    run = start(shell, fault.code)
    before = run.await_round(1, NODES)
    round = run.await_workers(NODES)
    (end, *_) = ends(run)
    assert end["reason"].startswith(f"rank {CULPRIT} failed on n{CULPRIT}: "), end
    (ended,) = [event for event in run.events("worker ended") if event["round"] == 1]
    assert (ended["rank"], ended["exit_code"], ended["node"]) == (CULPRIT, fault.exit_code, f"n{CULPRIT}")
    assert (ended["mark"], ended["mark_value"]) == ("step", STEP + 1)
    status = shell.command("status", "runs/r").stdout
    output = run.finish()
    assert f"rank {CULPRIT} failed: {fault.message}" in output, output
    assert run.replaced(before, round) == {CULPRIT}, run.story()  # the others have stayed
    assert "1 of 3" in status, status


@pytest.mark.slow
@pytest.mark.parametrize("fault", NODE_FAULTS.values(), ids=NODE_FAULTS)
def test_a_fault_of_a_node(shell: Shell, fault: NodeFault) -> None:
    run = start(shell, "")
    before = run.await_round(1, NODES)
    fault.inject(run)
    if not fault.reason:
        eventually(lambda: len(run.notes("1.*.on")) == NODES)
        assert ends(run) == [] and run.pids(1) == before
        run.finish()
        return
    round = run.await_workers(NODES if fault.returns else NODES - 1)
    (end, *_) = ends(run)
    assert fault.reason in end["reason"], end
    assert run.replaced(before, round) == {CULPRIT}, run.story()  # the others have stayed
