"""The process groups of a GPU, such as those of NCCL, in a process that stays when its round ends.

A collective of NCCL is a kernel on the GPU. If a peer is lost, it never ends by itself, and no signal reaches a thread
that waits for it. It ends when its communicator is aborted, and its result is then nonsense. An optimizer must not use
that: before each of its steps the collectives are waited for, and the step is left out if the round has ended.

A thread of torch, its watchdog, would end a process whose peer is lost. The agent does this work, so all that the
watchdog does about an error is switched off.
"""

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WITHOUT_REACTION = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # does not end the process
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # does not end it while the watchdog waits for the interpreter lock
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # asks no other rank for its flight record
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # does not wait four times as long for these records
}
"""The variables of torch that switch off what its watchdog does after an error; source: ProcessGroupNCCL.hpp."""

_RECORD_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The new and the old variable for the number of collectives in the flight record."""


def leave_errors_to_agent() -> None:
    """Switch off the reaction of torch to errors of NCCL, for process groups that are created from now on.

    After an error the watchdog also prints the stack of the collective, if the flight record has it. This imports the
    compiler of torch, for which the end of the round would wait for seconds. So there is no flight record, unless the
    user has set its size.
    """
    import torch

    os.environ.update(_WITHOUT_REACTION)
    if torch.backends.cuda.is_built() and not any(name in os.environ for name in _RECORD_VARIABLES):  # type: ignore[no-untyped-call]
        os.environ.update(dict.fromkeys(_RECORD_VARIABLES, "0"))


def connect(device: "torch.device") -> None:
    """Create the communicator of the default process group for a GPU, which the first collective otherwise does."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1, device=device))
    torch.cuda.synchronize(device)


def abort_device_groups() -> None:
    """Abort all process groups, if the GPU is in use. May hang, if the GPU does.

    An abort frees memory, for which CUDA waits until all collectives on the GPU have ended, also those of other groups.
    So all groups are aborted at the same time.
    """
    import torch
    import torch.distributed.distributed_c10d as c10d

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    threads = [threading.Thread(target=_abort, args=(group,), name="abort") for group in list(c10d._world.pg_names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _abort(group: Any) -> None:
    with contextlib.suppress(Exception):  # it is aborted already, destroyed at this moment, or cannot be aborted
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


def backends() -> str | None:
    """Return the backends for a process group that communicates from the memory of the CPU and of the accelerator.

    None for the choice of torch, if there is no accelerator. With one, torch chooses only the backend of the
    accelerator.
    """
    import torch
    import torch.distributed as dist

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (
        None
        if accelerator is None
        else f"cpu:gloo,{accelerator.type}:{dist.get_default_backend_for_device(accelerator)}"
    )


def carrier(device: str, config: str) -> str:
    """Return the type of the device from whose memory a process group sends a tensor that is on a ``device``.

    ``config`` has the backends of the group, as ``torch.distributed.get_backend_config`` returns them. gloo sends from
    the memory of the CPU only, and NCCL only from that of a GPU.

    Examples:
        >>> carrier("cpu", "cpu:gloo,cuda:nccl"), carrier("cuda", "cpu:gloo,cuda:nccl")
        ('cpu', 'cuda')
        >>> carrier("cpu", "cuda:nccl"), carrier("cuda", "cpu:gloo,cuda:gloo")
        ('cuda', 'cpu')
    """
    pairs = (pair.split(":") for pair in config.split(","))
    senders = [of for of, backend in pairs if of == "cpu" or backend != "gloo"]
    return device if device in senders else senders[0]


def time_without_pending_work() -> float:
    """Return the time once the GPU has done its work, for which a save would wait, and which the save does not cost."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.monotonic()
