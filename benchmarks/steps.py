"""A worker for the benchmarks: an all-reduce every 20 ms, each noted with the time, the world size and the attempt."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    attempt = os.environ.get("HPCELASTIC_ROUND") or os.environ["TORCHELASTIC_RESTART_COUNT"]
    value = torch.zeros(1)
    with open(os.path.join(sys.argv[1], f"{os.getpid()}.jsonl"), "w", buffering=1) as notes:
        while not os.path.exists(os.path.join(sys.argv[1], "finish")):
            dist.all_reduce(value)
            note = {"time": time.monotonic(), "world": dist.get_world_size(), "attempt": attempt, "pid": os.getpid()}
            notes.write(json.dumps(note) + "\n")
            time.sleep(0.02)
        os._exit(0)  # the others see the file a moment later; no collective may wait for them


if __name__ == "__main__":
    main()
