"""A worker that finds the others by the run's store and keeps values there. In its first round, the last rank dies."""

import os
import signal
import time

import torch
import torch.distributed as dist

import hpcelastic

round, rank, world_size = (os.environ[name] for name in ("HPCELASTIC_ROUND", "RANK", "WORLD_SIZE"))
store = hpcelastic.store()
here = dist.PrefixStore(f"round {round}", store)
dist.init_process_group("gloo", store=here, rank=int(rank), world_size=int(world_size))
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == int(world_size)
store.append("seen", f"{round}.{rank} ")
store.queue_push("places", f"{round}.{rank}")
dist.barrier()
if int(rank) == int(world_size) - 1 and store.compare_set("died in", "", round) == round.encode():
    store.set("last words", "and so on")
    os.kill(os.getpid(), signal.SIGKILL)
store.set(f"met in {round}", "")
while not store.check(["finish"]):
    time.sleep(0.1)
