"""Sharded states: each rank saves the blocks that it holds, and any number of ranks read the blocks that they need.

A DTensor in a state is sharded: each rank holds a rectangular block of it. All other values must be equal on all ranks,
so the part of rank 0 has them. Ranks that hold the same block are *replicas*, and only the first of them saves it.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcelastic.errors import StoreError

from .leaves import Path, leaves, map_leaves

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor

_PLACE = "hpcelastic: a sharded tensor"
"""Marks where a sharded tensor was."""


def is_sharded(state: dict[str, Any]) -> bool:
    """Return whether a state has tensors of which each rank holds a part."""
    return bool(_sharded_tensors(state))


def is_sharded_model(model: "torch.nn.Module") -> bool:
    """Return whether a model has parameters of which each rank holds a part."""
    return is_sharded(dict(model.named_parameters()))


def require_like(name: object, like: dict[str, Any] | None, *, sharded: bool) -> None:
    """Raise ``StoreError`` if a saved state is ``sharded``, and there is no state to load it into."""
    if sharded and like is None:
        raise StoreError(
            f"{name} is a part of a sharded state; give load(like=...) the state of this script, whose tensors are "
            "sharded too"
        )


def part_of(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return what this rank saves of a sharded state. It has no DTensor, and can be loaded without a process group.

    ``state`` is, on rank 0, the state with a mark in the place of each sharded tensor. ``blocks`` has for the path of a
    sharded tensor its whole shape, the position of the block in it, and the block, a tensor.
    """
    tensors = _sharded_tensors(state)
    blocks = {
        path: (tuple(tensor.shape), _position(tensor), tensor.to_local().detach())
        for path, tensor in tensors.items()
        if _is_first_replica(tensor)
    }
    skeleton = map_leaves(lambda path, leaf: _PLACE if path in tensors else leaf, state) if rank == 0 else None
    return {"state": skeleton, "blocks": blocks}


class Merge:
    """The sharded tensors of ``like``, which receive the blocks of saved parts, in any order."""

    def __init__(self, like: dict[str, Any]) -> None:
        self._tensors = _sharded_tensors(like)
        self._missing = {path: tensor.to_local().numel() for path, tensor in self._tensors.items()}

    @property
    def complete(self) -> bool:
        """Whether the local blocks of all tensors have been received."""
        return not any(self._missing.values())

    def add(self, part: dict[str, Any]) -> None:
        """Copy what the local blocks share with the blocks of a part. Parts do not overlap.

        Raises ``StoreError`` if a tensor has another shape than the saved one.
        """
        import torch

        with torch.no_grad():
            for path, tensor in self._tensors.items():
                if path in part["blocks"]:
                    self._missing[path] -= _fill(path, tensor, *part["blocks"][path])

    def state(self, skeleton: Any) -> dict[str, Any]:
        """Return the state of which ``skeleton`` is all that is not sharded.

        Raises ``StoreError`` if ``like`` has not the sharded tensors of the state, or a block is missing.
        """

        def restored(path: Path, leaf: Any) -> Any:
            if not isinstance(leaf, str) or leaf != _PLACE:
                return leaf
            if path not in self._tensors:
                raise StoreError(
                    f"the saved state has the sharded tensor {_text(path)}, and the state to load into has not"
                )
            return self._tensors[path]

        for path, missing in self._missing.items():
            if missing:
                total = self._tensors[path].to_local().numel()
                raise StoreError(f"the saved state lacks {missing} of the {total} elements of {_text(path)} here")
        merged: dict[str, Any] = map_leaves(restored, skeleton)
        return merged


def merge_parts(parts: Sequence[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    """Return the state of which ``parts`` are all parts, with the sharded tensors of ``like``, which are overwritten.

    Raises ``StoreError`` if ``like`` has not the sharded tensors of the state, or a block is missing.
    """
    merge = Merge(like)
    for part in parts:
        merge.add(part)
    return merge.state(parts[0]["state"])


def _fill(path: Path, tensor: "DTensor", shape: Sequence[int], start: Sequence[int], block: "torch.Tensor") -> int:
    """Copy to the local block of ``tensor`` what it shares with a block. Return the number of elements."""
    local = tensor.to_local()
    if tuple(shape) != tuple(tensor.shape):
        raise StoreError(f"{_text(path)} has the shape {tuple(shape)} in the saved state, not {tuple(tensor.shape)}")
    ours, theirs = _overlap(_position(tensor), local.shape, start, block.shape)
    if any(part.stop <= part.start for part in ours):
        return 0
    local[ours].copy_(block[theirs])
    return local[ours].numel()


def _overlap(
    first: Sequence[int], first_sizes: Sequence[int], second: Sequence[int], second_sizes: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return what two blocks of one tensor, given by their positions and sizes, share: slices of each."""
    starts = [max(a, b) for a, b in zip(first, second, strict=True)]
    ends = [min(a + n, b + m) for a, n, b, m in zip(first, first_sizes, second, second_sizes, strict=True)]
    of_first = tuple(slice(start - a, end - a) for start, end, a in zip(starts, ends, first, strict=True))
    return of_first, tuple(slice(start - b, end - b) for start, end, b in zip(starts, ends, second, strict=True))


def _sharded_tensors(state: dict[str, Any]) -> "dict[Path, DTensor]":
    if "torch.distributed.tensor" not in sys.modules:  # importing it takes long, and no state has a DTensor then
        return {}
    from torch.distributed.tensor import DTensor

    return {path: leaf for path, leaf in leaves(state) if isinstance(leaf, DTensor)}


def _position(tensor: "DTensor") -> tuple[int, ...]:
    """Return the index of the first element of the local block. Raises ValueError for a tensor of partial sums."""
    (block,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]  # torch has not annotated it
    return tuple(block.offsets)


def _is_first_replica(tensor: "DTensor") -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and not any(
        index for index, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    )


def _text(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
