"""All that may change in a step before the optimizer's step: it is copied at each boundary, so it must be cheap."""

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .random_numbers import RandomNumbers

if TYPE_CHECKING:
    import torch


class SmallState:
    """The user's values, the buffers of models, and the states of the random number generators."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._random_numbers = RandomNumbers()
        self._all_buffers: list[torch.Tensor] = []

    def find_buffers(self, parts: Iterable[Any]) -> None:
        """Find the buffers of all models, which takes too long for each step."""
        self._all_buffers = [buffer for part in parts if hasattr(part, "buffers") for buffer in part.buffers()]

    def copy(self) -> None:
        """Copy the values, for `restore`."""
        self._state_before = copy.deepcopy(self._state)
        self._buffers = [(buffer, buffer.clone()) for buffer in self._all_buffers]
        self._random_states = self._random_numbers.states()

    def restore(self) -> None:
        import torch

        self._state.clear()
        self._state.update(copy.deepcopy(self._state_before))  # the same step may fail again
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._random_numbers.restore(self._random_states)
