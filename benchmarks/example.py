"""A worker for the benchmarks that runs a script of examples/ unchanged and notes each step of its optimizer.

``example.py NOTES SCRIPT [ARGUMENT ...]``. The script runs as the main program. Times are those of the monotonic clock,
which all processes of a machine share.
"""

import json
import os
import runpy
import sys
import time
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


def main(notes: str, script: str, *arguments: str) -> None:
    with open(os.path.join(notes, f"{os.getpid()}.jsonl"), "a", buffering=1) as file:

        def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            state = next(iter(optimizer.state.values()))
            world = {"world": dist.get_world_size(), "rank": dist.get_rank(), "round": _round()}
            step = int(state["step"]) - 1  # Adam counts its steps, and checkpoints contain the number
            file.write(json.dumps({"time": time.monotonic(), "pid": os.getpid(), "step": step, **world}) + "\n")

        register_optimizer_step_post_hook(note)
        sys.argv = [script, *arguments]
        sys.path.append(os.path.dirname(script))  # a fork server does not learn imports after a change of other entries
        runpy.run_path(script, run_name="__main__")


def _round() -> int:
    return int(os.environ.get("HPCELASTIC_ROUND", "0"))


if __name__ == "__main__":
    main(*sys.argv[1:])
