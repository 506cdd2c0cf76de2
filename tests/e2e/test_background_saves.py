"""A script saves in the background, and its agent publishes the checkpoints."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.storage.events import read_event_lines
from hpcelastic.training.seals import find_damage
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in
from tests.e2e import sites

SAVES = """
import os, sys, time
from pathlib import Path
import torch
from hpcelastic.training import Checkpoints, context

checkpoints = Checkpoints()
state = {"weights": torch.arange(1000.0), "step": 0}
found = checkpoints.load()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def run(shell: Shell, code: str, *flags: str) -> str:
    shell.write({"train.py": SAVES + code})
    agent = shell.agent("--node-name", "n1", "--nnodes=1", "--nproc-per-node=1", *flags, "train.py")
    _, stderr = agent.communicate(timeout=TIMEOUT)
    assert agent.returncode == 0, stderr
    return str(stderr)


def events(shell: Shell, kind: str) -> list[dict[str, object]]:
    return [event for event in read_event_lines(shell.directory / "runs/r/events") if event["event"] == kind]


@pytest.mark.slow
def test_the_last_checkpoint_is_complete_although_the_script_has_ended(shell: Shell) -> None:
    run(shell, "for step in range(1, 4): checkpoints.save(step, {**state, 'step': step}, wait=False)")
    files = sorted((shell.directory / "runs/r/checkpoints").glob("*.pt"))
    assert files[-1].name == "round-0001.step-00000003.pt"
    assert [find_damage(path) for path in files] == [None] * len(files)
    assert events(shell, "checkpoint saved")[-1]["step"] == 3


@pytest.mark.slow
def test_the_agent_keeps_the_best_checkpoint_and_the_next_round_knows_it(shell: Shell) -> None:
    code = """
from hpcelastic.training.periodic_saves import failure_history
checkpoints = Checkpoints(keep=1, best="loss")
begin = found.step if found else 0
for step, loss in enumerate([0.5, 0.2, 0.4] if found is None else [0.3], begin + 1):
    checkpoints.save(step, {**state, "step": step}, wait=False, metrics={"loss": loss})
    assert checkpoints.flush(60) and not checkpoints.is_saving()
failures = failure_history(context().run_dir).failures
if found is None:
    assert failures == 0
    os.kill(os.getpid(), 9)
assert failures == 1
best = checkpoints.load(best=True)
assert (best.step, best.metric, best.round) == (2, 0.2, 1)
"""
    assert "killed by SIGKILL" in run(shell, code, "--max-restarts=1")
    assert sorted(path.name for path in (shell.directory / "runs/r/checkpoints").glob("*.pt")) == [
        "round-0001.step-00000002.loss=0.2.pt",
        "round-0002.step-00000004.loss=0.3.pt",
    ]


@pytest.mark.slow
def test_a_flushed_checkpoint_survives_the_worker(shell: Shell) -> None:
    code = """
if found is None:
    checkpoints.save(5, {**state, "step": 5}, wait=False)
    assert checkpoints.flush(60)
    os.kill(os.getpid(), 9)
assert (found.step, found.state["step"], found.state["weights"].tolist()) == (5, 5, state["weights"].tolist())
"""
    assert "killed by SIGKILL" in run(shell, code, "--max-restarts=1")


@pytest.mark.slow
def test_a_checkpoint_is_loaded_that_was_not_on_disk_when_the_worker_died(shell: Shell) -> None:
    code = """
if found is None:
    checkpoints.save(5, {"large": torch.zeros(40_000_000), "step": 5}, wait=False)
    os.kill(os.getpid(), 9)
assert (found.step, found.round) == (5, 1)
"""
    assert "killed by SIGKILL" in run(shell, code, "--max-restarts=1")


@pytest.mark.slow
def test_a_save_that_fails_does_not_end_the_training(shell: Shell) -> None:
    code = """
place = Path("place")
place.write_text("a file, which cannot be a directory")
checkpoints = Checkpoints(place)
checkpoints.save(1, state, wait=False)
time.sleep(0.5)
checkpoints.save(2, state, wait=False)
time.sleep(0.5)
place.unlink()
assert checkpoints.flush(60)
"""
    output = run(shell, code)
    assert "the checkpoint of step 1 is not saved: cannot make" in output
    assert [event["step"] for event in events(shell, "checkpoint failed")] == [1]
    assert [path.name for path in (shell.directory / "place").glob("*.pt")] == ["round-0001.step-00000002.pt"]


@pytest.mark.slow
def test_a_state_that_cannot_be_loaded_is_refused(shell: Shell) -> None:
    code = """
class Own: pass
try:
    checkpoints.save(1, {"own": Own()}, wait=False)
except Exception as error:
    Path("error").write_text(str(error))
"""
    run(shell, code)
    assert "this state cannot be a checkpoint: it holds __main__.Own" in (shell.directory / "error").read_text()
    assert not list((shell.directory / "runs/r").glob("checkpoints/*.pt"))


@pytest.mark.slow
def test_without_memory_the_save_waits_for_the_disk(shell: Shell) -> None:
    code = """
from hpcelastic.training import memory
from hpcelastic.training.memory import AvailableMemory
state["large"] = torch.zeros(2**20)
for step in (1, 2):
    memory.available_memory = lambda: AvailableMemory(step * 2**20, "this test")
    assert checkpoints.save(step, state, wait=False).exists()
"""
    printed = run(shell, code)
    assert "saving without the background, because it needs 4 MiB of memory, and 1 MiB are free in this test" in printed
    assert printed.count("saving without the background") == 1  # although another amount is free for each save
    assert events(shell, "checkpoint saved") == []


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A new cgroup whose processes may use 900 MiB of memory."""
    limits = {"memory": "memory.limit_in_bytes", "": "memory.max"}  # of version 1 and version 2
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controller, path = next((names, path) for _, names, path in lines if names in limits)
    made = Path("/sys/fs/cgroup", controller, path.lstrip("/"), f"hpcelastic-test-{os.getpid()}")
    with ExitStack() as stack:
        try:
            made.mkdir()
            stack.callback(made.rmdir)
            (made / limits[controller]).write_text(str(900 << 20))
        except OSError as error:
            pytest.skip(f"no cgroup with a memory limit can be made: {error}")
        yield made


@pytest.mark.slow
def test_a_memory_limit_is_respected(tmp_path: Path, cgroup: Path) -> None:
    """No process is killed: the save waits for the disk instead, and the training continues."""
    code = """
state["weights"] = torch.zeros(100 << 20)  # 400 MiB
for step in range(1, 3):
    checkpoints.save(step, state, wait=False)
"""
    enter = f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"'
    with shell_in(tmp_path, ["/bin/sh", "-c", enter, "sh"]) as shell:
        output = run(shell, code)
    assert f"MiB are free in the memory limit of {cgroup}" in output and "it needs 400 MiB" in output
    assert (tmp_path / "runs/r/checkpoints/round-0001.step-00000002.pt").stat().st_size > 400 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mounted", "fault", "complaint"),
    [
        pytest.param(sites.mounted_disk, sites.full, "No space left on device", id="full"),
        pytest.param(sites.mounted_share, sites.over_quota, "Disk quota exceeded", id="over quota"),
    ],
)
def test_a_save_waits_for_space(
    tmp_path: Path,
    mounted: Callable[[Path], AbstractContextManager[Any]],
    fault: Callable[[Any], AbstractContextManager[None]],
    complaint: str,
) -> None:
    """The training continues meanwhile, and the save is tried again until the filesystem of the checkpoints has space.

    The file that could not be written leaves nothing behind.
    """
    if reason := sites.why_unavailable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    code = """
checkpoints = Checkpoints(Path(sys.argv[1]))
checkpoints.save(1, {**state, "step": 1}, wait=False)
assert checkpoints.flush(60)
Path("first").touch()
while not Path("struck").exists():
    time.sleep(0.01)
checkpoints.save(2, {**state, "step": 2}, wait=False)
for step in range(50):
    time.sleep(0.01)
Path("trained").touch()
assert checkpoints.flush(60)
"""
    with ExitStack() as stack:
        site = stack.enter_context(mounted(tmp_path))
        shell = stack.enter_context(shell_in(tmp_path, site.prefix))
        shell.write({"train.py": SAVES + code})
        agent = shell.agent("--node-name", "n1", "--nnodes=1", "train.py", str(site.root / "checkpoints"))
        eventually((tmp_path / "first").exists)
        with fault(site):
            (tmp_path / "struck").touch()
            eventually((tmp_path / "trained").exists)
            assert [path.name for path in (site.seen / "checkpoints").glob("*.pt")] == ["round-0001.step-00000001.pt"]
        _, stderr = agent.communicate(timeout=TIMEOUT)
        assert agent.returncode == 0, stderr
        fence, *files = sorted((site.seen / "checkpoints").iterdir())
        assert fence.name.startswith(".publishing-")
        assert [path.name for path in files] == [f"round-0001.step-0000000{step}.pt" for step in (1, 2)]
        assert [find_damage(path) for path in files] == [None, None]
    assert stderr.count(complaint) == 1
    assert [event["step"] for event in events(shell, "checkpoint saved")] == [1, 2]
