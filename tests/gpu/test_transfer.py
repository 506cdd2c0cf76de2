"""The transfer of a state between processes with a GPU, by NCCL alone and by gloo and NCCL."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Shell

pytestmark = pytest.mark.gpu

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from hpcelastic.training.recovery import Choice, Held
from hpcelastic.training.transfer import receive_state, send_state

rank, store, backends = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.cuda.set_device(0)
os.environ["NCCL_HOSTID"] = str(os.getpid())  # NCCL refuses two ranks of one host on the same GPU
dist.init_process_group(backends, init_method=f"file://{store}", rank=rank, world_size=3)
state = {
    "gpu": torch.arange(1000.0, device="cuda"), "half": torch.ones(3, 5, dtype=torch.bfloat16, device="cuda"),
    "cpu": torch.arange(10, dtype=torch.int32), "empty": torch.empty(0), "step": 7,
}
choice = Choice(Held(1, 7), sources=(0, 2), receivers=(1,))
if rank in choice.sources:
    send_state(state, choice, rank)
else:
    received = receive_state(choice, rank)
    assert received["step"] == 7 and received.keys() == state.keys()
    for name in ("gpu", "half", "cpu", "empty"):
        assert received[name].device == state[name].device and torch.equal(received[name], state[name]), name
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backends", ["nccl", "cpu:gloo,cuda:nccl", "gloo"])
def test_tensors_of_both_memories_arrive(shell: Shell, tmp_path: Path, backends: str) -> None:
    arguments = [str(tmp_path / "store"), backends]
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), *arguments], stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], errors
