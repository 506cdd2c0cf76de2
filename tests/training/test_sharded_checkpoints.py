"""Checkpoints of sharded states, saved and loaded by real processes of gloo groups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.training import Checkpoints

pytestmark = pytest.mark.slow

BEGIN = """
import atexit, sys, time, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from hpcelastic.errors import StoreError
from hpcelastic.training import Checkpoints

atexit.register(time.sleep, 0.05)  # torch's threads release the last tensors, which the end of Python would abort
store, rank, ranks, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)

def training(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)

def train(model, optimizer):
    x = torch.arange(20.0).reshape(4, 5)
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def values(model, optimizer):
    state = get_state_dict(model, optimizer)
    whole = lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value
    tensors = [whole(value) for value in state[0].values()]
    tensors += [whole(value) for entry in state[1]["state"].values() for value in entry.values()]
    return [tensor.tolist() for tensor in tensors]

checkpoints = Checkpoints(directory, round=1, keep=2)
"""
SAVE = """
model, optimizer = training(seed=0)
for step in (1, 2, 3):
    train(model, optimizer)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoints.save(step, {"training": state, "step": step}, wait=step != 2)
print(values(model, optimizer))
dist.destroy_process_group()
"""
LOAD = """
model, optimizer = training(seed=1)
state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
found = checkpoints.load(like={"training": state})
loaded = found.state["training"]
set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
print(found.step, found.state["step"], values(model, optimizer))
dist.destroy_process_group()
"""
FAILS = """
model, optimizer = training(seed=0)
if rank == 1:
    Checkpoints._publish = lambda *args: (_ for _ in ()).throw(StoreError("no space"))
try:
    checkpoints.save(9, {"model": model.state_dict()})
except StoreError as error:
    print(error)
dist.destroy_process_group()
"""


def run_ranks(tmp_path: Path, script: str, ranks: int) -> list[str]:
    """Return the output of each rank."""
    store = tmp_path / f"store-{len(os.listdir(tmp_path))}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(store), str(rank), str(ranks), str(tmp_path / "checkpoints")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return [output for output, _ in outputs]


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pt"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_loads_what_three_have_saved(tmp_path: Path, ranks: int) -> None:
    saved = run_ranks(tmp_path, SAVE, 3)
    assert names(tmp_path) == [
        f"round-0001.step-{step:08}.part-{part:05}-of-00003.pt" for step in (2, 3) for part in range(3)
    ]
    assert run_ranks(tmp_path, LOAD, ranks) == [f"3 3 {saved[0]}"] * ranks


def test_a_checkpoint_with_a_missing_or_damaged_part_is_skipped(tmp_path: Path) -> None:
    run_ranks(tmp_path, SAVE, 3)
    newest = tmp_path / "checkpoints" / names(tmp_path)[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert [output[:3] for output in run_ranks(tmp_path, LOAD, 2)] == ["2 2"] * 2
    newest.unlink()
    assert [output[:3] for output in run_ranks(tmp_path, LOAD, 2)] == ["2 2"] * 2


def test_a_rank_that_cannot_save_is_an_error_of_all(tmp_path: Path) -> None:
    message = "the checkpoint of step 9 is not saved: rank 1: no space\n"
    assert run_ranks(tmp_path, FAILS, 2) == [message] * 2


def test_a_script_that_is_not_sharded_is_told_what_to_give(tmp_path: Path) -> None:
    run_ranks(tmp_path, SAVE, 2)
    with pytest.raises(StoreError, match=r"part-00000-of-00002.pt is a part of a sharded state; give load\(like="):
        Checkpoints(tmp_path / "checkpoints", round=2).load()
