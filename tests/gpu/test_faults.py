"""Faults of a GPU's programs in real runs with NCCL: what `why` says of them, and which processes stay."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcelastic.api.run import Run as FinishedRun
from tests.cli.shell import Shell
from tests.e2e.rounds import Run
from tests.faults.kinds import CULPRIT, NODES, SCRIPT, STEP
from tests.gpu.scripts import on_gpu

pytestmark = pytest.mark.gpu

ON_GPU = on_gpu(
    SCRIPT,
    {
        'init_process_group("gloo")': 'init_process_group("nccl", device_id=torch.device("cuda:0"))',
        'finished = torch.tensor([float(Path("finish").exists())])': (
            'finished = torch.tensor([float(Path("finish").exists())]).cuda()'
        ),
    },
)


@dataclass(frozen=True)
class Fault:
    code: str
    cause: str
    """The id of the known cause."""

    blame: str = "program"


FAULTS = {
    "no memory on the GPU": Fault("torch.empty(1 << 42, dtype=torch.uint8, device='cuda')", "cuda-out-of-memory"),
    "a device-side assertion": Fault(
        "torch.nn.functional.embedding(torch.tensor([7]).cuda(), torch.randn(3, 2).cuda()).sum().item()", "cuda-assert"
    ),
    "another device": Fault("torch.ones(1).cuda() @ torch.ones(1)", ""),
    "a killed process": Fault("os.kill(os.getpid(), signal.SIGKILL)", ""),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_explained_and_the_others_stay(shell: Shell, tmp_path: Path, fault: Fault) -> None:
    arguments = (str(CULPRIT), str(STEP), fault.code)
    run = Run(shell, ON_GPU, NODES, "--redirects=3", script_arguments=arguments)
    before = run.await_round(1, NODES)
    round = run.await_workers(NODES)
    run.finish()
    copy = tmp_path / "copy"
    shutil.copytree(shell.directory / "runs" / "r", copy)
    found = FinishedRun(copy).why(1)
    assert (found.node, found.rank) == (f"n{CULPRIT}", CULPRIT), found
    assert not fault.cause or (found.id, found.blame) == (fault.cause, fault.blame), found
    replaced = {rank for rank, pid in run.pids(round).items() if before[rank] != pid}
    assert replaced == {CULPRIT}, run.story()  # the others have stayed
