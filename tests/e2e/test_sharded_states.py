"""Training with `Elastic` and FSDP2: each rank holds a part of the state, and all parts are in the checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.training.checkpoint_files import CheckpointFiles
from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run
from tests.e2e.test_elastic import TRAINS, begins, check_result

GROUP = """
    alone = {} if "RANK" in os.environ else {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", **alone)"""
CHANGES = {
    "from torch.nn.parallel import DistributedDataParallel as DDP": "from torch.distributed.fsdp import fully_shard",
    "GlobalBatches, context": "GlobalBatches, context, resumable",
    "DDP(elastic.model) if context().world_size > 1 else elastic.model": "elastic.model",
    "def main():": f"def main():{GROUP}",
    "    optimizer = ": "    for part in (model[0], model[2], model):\n        fully_shard(part)\n    optimizer = ",
    ", fused=True": "",
    "    if context().rank == 0:": "    whole = [value.full_tensor() for value in model.state_dict().values()]\n"
    "    if context().rank == 0:",
    "for value in model.state_dict().values()]\n        Path": "for value in whole]\n        Path",
    "\nmain()\n": "\nresumable(main)()\n",
}


def changed(code: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert before in code, before
        code = code.replace(before, after)
    return code


SHARDED = changed(TRAINS, CHANGES)


pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def test_the_others_continue_in_their_processes_when_a_node_is_lost(shell: Shell) -> None:
    run = Run(shell, SHARDED, 3, script_arguments=("20", "1", "0", "0"))
    before = run.pids(1)
    files = CheckpointFiles(shell.directory / "runs/r/checkpoints", 0, None)
    eventually(files.names)
    saved = files.names()[0].step
    run.kill_node(2)
    after = run.await_round(2, 2)
    assert set(after.values()) == {pid for rank, pid in before.items() if rank != 2}
    steps = set(begins(run, 2).values())
    assert len(steps) == 1 and steps.pop() >= saved > 0
    run.finish()
    check_result(shell, SHARDED)


def test_a_node_joins(shell: Shell) -> None:
    run = Run(shell, SHARDED, 1, "--nnodes=1:3", script_arguments=("20", "0", "0", "0"))
    run.agents.append(run.start("n8", "--nnodes=1:3"))
    run.await_round(2, 2)
    steps = set(begins(run, 2).values())
    assert len(steps) == 1 and steps.pop() > 0
    run.finish()
    check_result(shell, SHARDED)


def test_a_model_that_belongs_to_one_round_is_refused(shell: Shell) -> None:
    shell.write({"train.py": changed(SHARDED, {"resumable(main)()": "main()"})})
    (shell.directory / "notes").mkdir()
    agent = shell.agent("--nnodes=1", "--max-restarts=0", "train.py", "20", "1", "0", "0")
    _, stderr = agent.communicate(timeout=120)
    assert agent.returncode == 1
    assert "make the model and Elastic in a function, and call it by resumable(function)()" in stderr
