"""Objects that outlive their round although they hold its process groups."""

import subprocess
import sys

import pytest

SCRIPT = """
import gc, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from hpcelastic.training.kept_groups import kept_wrappers

class Trainer: pass
trainer, entries = Trainer(), {}

def in_a_local_variable():
    ddp = DDP(torch.nn.Linear(1, 1))
def in_a_module():
    global old
    old = DDP(torch.nn.Linear(1, 1))
def in_an_attribute():
    trainer.model = DDP(torch.nn.Linear(1, 1))
def in_an_entry():
    entries["ddp"] = DDP(torch.nn.Linear(1, 1))
def in_a_function():
    ddp = DDP(torch.nn.Linear(1, 1))
    return lambda: ddp

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
gc.freeze()
for train in (in_a_local_variable, in_a_module, in_an_attribute, in_an_entry, in_a_function):
    returned = train()
    gc.collect()
    print(*kept_wrappers())
    old = trainer.model = entries["ddp"] = returned = None
"""


@pytest.mark.slow
def test_what_holds_an_old_group_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "",
        "DistributedDataParallel in the variable old of the module __main__",
        "DistributedDataParallel in the attribute model of a Trainer",
        "DistributedDataParallel in the entry ddp of a dict",
        "DistributedDataParallel in a cell",
    ], done.stderr
