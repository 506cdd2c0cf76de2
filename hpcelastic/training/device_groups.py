"""The process groups of a GPU, such as those of NCCL, in a process that stays when its round ends.

A collective of NCCL is a kernel on the GPU. If a peer is lost, it never ends by itself, and no signal reaches a thread
that waits for it. It ends when its communicator is aborted, and its result is then nonsense. An optimizer must not use
that: before each of its steps the collectives are waited for, and the step is left out if the round has ended.

The watchdog of torch would end a process whose peer is lost. It is switched off, because the agent does this work.
"""

import contextlib
import os
import time
from typing import Any


def leave_errors_to_agent() -> None:
    """Switch off the reaction of torch to errors of NCCL, for process groups that are created from now on."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"


def abort_device_groups() -> None:
    """Abort all process groups, if the GPU is in use. May hang, if the GPU does."""
    import torch
    import torch.distributed.distributed_c10d as c10d

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    # Newer groups first. Several communicators are aborted in one NCCL group, because one abort may wait for another.
    newest_first = sorted(c10d._world.pg_names, key=lambda group: c10d._world.pg_names[group], reverse=True)
    with contextlib.ExitStack() as stack:
        backend = _nccl_backend()
        if backend is not None:
            backend._group_start()
            stack.callback(backend._group_end)
        for group in newest_first:
            with contextlib.suppress(Exception):  # it is aborted already, or destroyed at this moment
                group.abort()


def await_collectives() -> bool:
    """Wait until all collectives that this process has begun on its GPU are complete or aborted.

    Return False without a wait if it uses no GPU.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    torch.cuda.current_stream().synchronize()
    return True


def _nccl_backend() -> Any:
    """Return NCCL's part of the default process group; None if there is none."""
    import torch
    import torch.distributed as dist

    world = dist.group.WORLD
    with contextlib.suppress(RuntimeError):
        backend = world._get_backend(torch.device("cuda")) if world is not None else None
        return backend if hasattr(backend, "_group_start") else None
    return None


def time_without_pending_work() -> float:
    """Return the time once the GPU has done its work, for which a save would wait, and which the save does not cost."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.monotonic()
