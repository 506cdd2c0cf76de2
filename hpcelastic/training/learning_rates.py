"""Learning rates that follow the size of the batch while the optimizer steps."""

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def scale_learning_rates(optimizer: "torch.optim.Optimizer", factor: Callable[[], float]) -> None:
    """Multiply the learning rates of ``optimizer`` by ``factor()`` during each of its steps.

    Outside its steps, and after a step that raises, the learning rates are those of the user. For this the method
    ``step`` is replaced, as the learning-rate schedules of torch do; torch calls no hook after a step that raises.
    """
    step = optimizer.step

    @functools.wraps(step)
    def scaled_step(self: "torch.optim.Optimizer", *args: Any, **kwargs: Any) -> Any:
        before = [(group, group["lr"]) for group in self.param_groups]
        scale = factor()
        try:
            for group, rate in before:
                group["lr"] = rate * scale
            return step(*args, **kwargs)
        finally:
            for group, rate in before:
                group["lr"] = rate

    optimizer.step = types.MethodType(scaled_step, optimizer)  # type: ignore[method-assign]  # see above
