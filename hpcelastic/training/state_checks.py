"""The checks of a training with `Elastic` that find a poisoned state."""

from typing import TYPE_CHECKING

from .checkpoints import Checkpoints
from .loss_check import LossCheck
from .replicas import check_replicas

if TYPE_CHECKING:
    import torch


class StateChecks:
    """Checks losses, and every ``every`` steps the replicas; 0 for never."""

    def __init__(self, checkpoints: Checkpoints | None, spike: float | None, every: int) -> None:
        if every < 0:
            raise ValueError(f"check_replicas is {every}; it must be 0 or more steps")
        self.loss = LossCheck(checkpoints, spike=spike)
        self._checkpoints, self._every = checkpoints, every
        self._world_size = 0
        """The number of ranks in the newest round; 0 before the first."""

    def begin_round(self, world_size: int) -> None:
        """Note that a round begins. The sum of the losses over a rank's share depends on the number of ranks."""
        if world_size != self._world_size:
            self.loss.forget()
        self._world_size = world_size

    def replicas(self, model: "torch.nn.Module", step: int) -> None:
        """Compare the replicas if that is due after ``step`` steps. Collective."""
        if self._every and step % self._every == 0:
            check_replicas(model, step, self._checkpoints)
