"""A run whose error returns in the same step ends, because a restart cannot help."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shell_in

JOB = """\
run: {name: r}
entrypoint: {script: train.py}
workers: {per_node: 1, stop_grace: 1}
rendezvous: {last_call: 1, lease: 2, margin: 0.5, poll: 0.05}
restarts: {max: 5}
"""

SCRIPT = """
import sys
from pathlib import Path
from hpcelastic.training import Checkpoints, context, should_stop

checkpoints = Checkpoints()
newest = checkpoints.load()
step = newest.step if newest else 0
while not should_stop():
    if step == 7 + int(sys.argv[1]) * context().round:
        with Path("failures").open("a") as failures:
            failures.write(f"{step}\\n")
        if context().round > 3:
            break
        raise ValueError("a bad sample")
    step += 1
    if step % 3 == 0:
        checkpoints.save(step, {"step": step})
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"job.yaml": JOB, "train.py": SCRIPT})
        yield made


@pytest.mark.slow
def test_the_same_error_in_the_same_step_ends_the_run(shell: Shell) -> None:
    done = shell.hpcelastic("run", "job.yaml", "entrypoint.args=['0']")
    assert done.returncode == 4, done.stderr
    assert (shell.directory / "failures").read_text() == "7\n7\n"
    assert "the same error in the same step, 2 times in a row (restarts.identical): a restart cannot help" in (
        done.stderr
    )
    status = shell.hpcelastic("status", "r").stdout
    assert "ValueError: a bad sample" in status and "restarts   2 of 5" in status


@pytest.mark.slow
def test_the_same_error_in_later_steps_does_not(shell: Shell) -> None:
    done = shell.hpcelastic("run", "job.yaml", "entrypoint.args=['1']")
    assert done.returncode == 0, done.stderr
    assert (shell.directory / "failures").read_text() == "8\n9\n10\n11\n"
