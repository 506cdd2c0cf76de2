"""Loading a state into tensors that exist. It takes no new memory, whose first use takes longer than the copy."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from .leaves import Path, leaves, map_leaves

if TYPE_CHECKING:
    import torch


def copied(state: Any, like: Any) -> Any:
    """Return a copy of ``state``.

    Tensors of ``like`` receive, and replace, the values of those with the same path, shape and type.
    """
    import torch

    targets = _targets(like)

    def copy(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        target = targets.get(path)
        if target is None or (target.shape, target.dtype) != (leaf.shape, leaf.dtype):
            return leaf.clone()
        return target.copy_(leaf)

    with torch.no_grad():
        return map_leaves(copy, state)


def _targets(like: Any) -> "dict[Path, torch.Tensor]":
    """Return the tensors that can receive values, by their paths. Each has memory that no other one uses."""
    import torch

    tensors: dict[Path, torch.Tensor] = {
        path: leaf
        for path, leaf in leaves(like)
        if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout == torch.strided and not leaf.is_meta
    }
    uses = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    return {
        path: tensor
        for path, tensor in tensors.items()
        if tensor.is_contiguous() and uses[tensor.untyped_storage().data_ptr()] == 1
    }
