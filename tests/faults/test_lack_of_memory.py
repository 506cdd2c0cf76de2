"""A lack of memory in real runs: the process that the kernel has killed is named, with the limit of the job."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.health.host_memory import memory_cgroup
from hpcelastic.storage.events import read_event_lines
from tests.cli.shell import eventually, shell_in

LIMIT = 256 << 20

SCRIPT = """
import multiprocessing, os, sys, time

def fill():
    pages = []
    while True:
        pages.append(os.urandom(1 << 20))

if os.environ["RANK"] == "1" and os.environ["HPCELASTIC_ROUND"] == "1":
    if sys.argv[1] == "worker":
        fill()
    child = multiprocessing.get_context("fork").Process(target=fill)
    child.start()
    child.join()
    sys.exit(f"the child has ended with {child.exitcode}")
if os.environ["HPCELASTIC_ROUND"] == "1":
    time.sleep(1000)
"""

JOB = """
run: {name: r}
nodes: 1
entrypoint: {script: train.py, args: [%s]}
workers: {per_node: 2, stop_grace: 1, preload: [argparse]}
rendezvous: {last_call: 1, lease: 30, poll: 0.05}
restarts: {max: 1}
"""


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Path]:
    """A memory cgroup with a limit, like that of a job."""
    ours = memory_cgroup(Path("/proc/self/cgroup").read_text().splitlines(), Path("/sys/fs/cgroup"))
    if ours is None:
        pytest.skip("this machine has no memory cgroups")
    made = ours.directory / f"hpcelastic-{secrets.token_hex(4)}"
    try:
        made.mkdir()
        (made / ours.limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"{made}: {error}; memory cgroups can be created by root only")
    yield made
    eventually(lambda: not (made / "cgroup.procs").read_text())
    os.rmdir(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "expected"),
    [
        ("worker", "killed by SIGKILL by the kernel, because of a lack of memory: the limit of the job is 256 MiB"),
        ("child", "; the kernel has killed another process of the job"),
    ],
    ids=["worker", "child"],
)
def test_a_process_that_the_kernel_has_killed_is_named(
    cgroup: Path, tmp_path: Path, victim: str, expected: str
) -> None:
    entered = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
    with shell_in(tmp_path, ("sh", "-c", entered, "sh")) as shell:
        shell.write({"train.py": SCRIPT, "job.yaml": JOB % victim})
        done = shell.hpcelastic("run", "job.yaml")
    assert done.returncode == 0, done.stderr
    changes = [event for event in read_event_lines(tmp_path / "runs/r/events") if event["event"] == "state changed"]
    (reason,) = {event["reason"] for event in changes if (event["phase"], event["round"]) == ("joining", 1)}
    assert reason.startswith("rank 1 failed on ") and expected in reason, reason
    assert "the limit of the job is 256 MiB" in reason, reason
