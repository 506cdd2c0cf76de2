"""A state that is sent from the memory of some ranks to others.

The tensors of a state are dealt out to the ranks that hold it, and each sends its tensors to all receivers. What is not
a tensor comes first, in the format of ``torch.save``, which the receiver reads without running code.
"""

import io
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .device_groups import carrier
from .leaves import Path, map_leaves
from .recovery import Choice

if TYPE_CHECKING:
    import torch

_REPORT_INTERVAL = 5.0
"""Seconds between two lines about the progress of a transfer."""

_WINDOW = 16
"""Number of tensors that are under way between two ranks."""

_PLACE = "hpcelastic: a tensor"
"""Marks in a skeleton where a tensor was."""


def send_state(state: dict[str, Any], choice: Choice, rank: int) -> None:
    """Send this rank's part of ``state`` to all receivers. All sources and receivers of ``choice`` call their function.

    Raises the error of torch if a receiver is lost.
    """
    import torch.distributed as dist

    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors(state, tensors)
    if rank == choice.source_of(0):
        data = _encoded([skeleton, [(tuple(tensor.shape), tensor.dtype, tensor.is_cuda) for tensor in tensors]])
        for receiver in choice.receivers:
            dist.send(_carried(_tensor_of_size(len(data))), receiver)
            dist.send(_carried(data), receiver)
    pending: deque[_Transfer] = deque()
    for part, tensor in enumerate(tensors):
        if rank == choice.source_of(part) and tensor.numel():
            data = _carried(_bytes_of(tensor.detach().contiguous()))
            for receiver in choice.receivers:
                pending.append(_Transfer(dist.isend(data, receiver), data, data))
                _wait(pending, _WINDOW)
    _wait(pending, 0)


def receive_state(choice: Choice, rank: int) -> dict[str, Any]:
    """Receive a state from all ranks that hold it."""
    import torch
    import torch.distributed as dist

    size = _carried(_tensor_of_size(0))
    dist.recv(size, choice.source_of(0))
    data = _carried(torch.empty(int(size.item()), dtype=torch.uint8, device="cpu"))
    dist.recv(data, choice.source_of(0))
    skeleton, shapes = torch.load(io.BytesIO(data.cpu().numpy().tobytes()), weights_only=True)
    device = torch.device("cuda", torch.cuda.current_device()) if any(cuda for _, _, cuda in shapes) else None
    tensors = [torch.empty(shape, dtype=dtype, device=device if cuda else "cpu") for shape, dtype, cuda in shapes]
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    received, reported = 0, time.monotonic()
    pending: deque[_Transfer] = deque()
    for part, tensor in enumerate(tensors):
        if tensor.numel():
            target = _bytes_of(tensor)
            data = _carried(target)
            pending.append(_Transfer(dist.irecv(data, choice.source_of(part)), data, target))
        received += _wait(pending, _WINDOW)
        if time.monotonic() - reported > _REPORT_INTERVAL:
            reported = time.monotonic()
            print(f"rank {rank}: received {received / 2**30:.1f} of {total / 2**30:.1f} GiB of the state", flush=True)
    _wait(pending, 0)
    state: dict[str, Any] = _with_tensors(skeleton, iter(tensors))
    return state


class _Transfer(NamedTuple):
    """A tensor that is under way."""

    work: Any
    data: "torch.Tensor"
    """Its bytes, on the device from which they are sent, or on which they arrive."""

    target: "torch.Tensor"
    """The same bytes, on the device of the tensor."""


def _carried(data: "torch.Tensor") -> "torch.Tensor":
    """Return ``data``, or a copy on a device from which the default process group can send it."""
    import torch
    import torch.distributed as dist

    kind = carrier(data.device.type, dist.get_backend_config())
    if kind == data.device.type:
        return data
    return data.to("cpu" if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index()))


def _wait(pending: "deque[_Transfer]", limit: int) -> int:
    """Wait until at most ``limit`` transfers are under way. Return the number of bytes that were transferred."""
    done = 0
    while len(pending) > limit:
        work, data, target = pending.popleft()
        work.wait()
        if target is not data:
            target.copy_(data)
        done += data.numel()
    return done


def _without_tensors(state: Any, tensors: "list[torch.Tensor]") -> Any:
    """Return a copy of ``state`` with a mark in place of each tensor, and append the tensors."""
    import torch

    def replaced(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return _PLACE

    return map_leaves(replaced, state)


def _with_tensors(skeleton: Any, tensors: "Iterator[torch.Tensor]") -> Any:
    """Return a copy of a skeleton with ``tensors`` in their places."""
    return map_leaves(lambda path, leaf: next(tensors) if leaf == _PLACE else leaf, skeleton)


def _encoded(value: Any) -> "torch.Tensor":
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _tensor_of_size(size: int) -> "torch.Tensor":
    import torch

    return torch.tensor([size], dtype=torch.int64, device="cpu")


def _bytes_of(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the memory of a contiguous tensor as a tensor of bytes, because gloo does not know all types."""
    import torch

    return tensor.reshape(-1).view(torch.uint8)
