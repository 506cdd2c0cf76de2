"""Checks that all ranks have the same parameters, because hardware that computes wrongly makes them differ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcelastic.errors import PoisonedState

from .checkpoints import Checkpoints
from .context import context
from .loss_check import demand_rollback
from .process_groups import gather_objects

if TYPE_CHECKING:
    import torch

_FACTOR, _MODULUS = 1_000_003, 2**63


def check_replicas(model: "torch.nn.Module", step: int, checkpoints: Checkpoints | None) -> None:
    """Raise `PoisonedState` on the ranks whose parameters or buffers differ from those of most ranks. Collective.

    If none are those of most ranks, no rank can be trusted. All raise it, and training returns to a checkpoint.
    """
    sums = gather_objects(checksum(model))
    differing = differing_ranks(sums)
    if context().rank not in differing:
        return
    ranks = ", ".join(map(str, differing[:8])) + (" and others" if len(differing) > 8 else "")
    if len(differing) < len(sums):
        which = f"rank {ranks} has" if len(differing) == 1 else f"ranks {ranks} have"
        raise PoisonedState(f"{which} other parameters than the other {len(sums) - len(differing)} after {step} steps")
    problem = f"the parameters of the {len(sums)} ranks differ, and none are those of most ranks,"
    demand_rollback(problem, step, checkpoints)


def differing_ranks(sums: Sequence[int]) -> list[int]:
    """Return the ranks whose checksum is not that of most ranks: all ranks if none is that of more than half."""
    common = max(sums, key=sums.count)
    if 2 * sums.count(common) <= len(sums):
        return list(range(len(sums)))
    return [rank for rank, value in enumerate(sums) if value != common]


def checksum(model: "torch.nn.Module") -> int:
    """Return a checksum of the bits of all parameters and buffers. Every changed bit changes it."""
    import torch

    total = 0
    for tensor in model.state_dict().values():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            words = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(torch.int64)
            total = (total * _FACTOR + int(words.sum())) % _MODULUS
    return total
