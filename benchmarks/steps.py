"""A worker for the benchmarks: an all-reduce every 20 ms, with a note of each. ``steps.py NOTES [BACKEND]``

With ``nccl`` the value is on the worker's GPU, and a step is noted once the GPU has finished it. Times are those of the
monotonic clock, which all processes of a machine share.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main(notes: str, backend: str = "gloo") -> None:
    up = time.monotonic()
    cuda = backend == "nccl"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    value = torch.zeros(1, device="cuda" if cuda else "cpu")
    facts = {"world": dist.get_world_size(), "rank": dist.get_rank(), "pid": os.getpid(), "up": up}
    with open(os.path.join(notes, f"{os.getpid()}.jsonl"), "w", buffering=1) as file:
        while True:
            dist.all_reduce(value)
            if cuda:
                torch.cuda.synchronize()
            file.write(json.dumps({"time": time.monotonic(), **facts}) + "\n")
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
