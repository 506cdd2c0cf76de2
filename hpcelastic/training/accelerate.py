"""Checkpoints of what was prepared with Accelerate: published atomically, in the background, for any number of ranks.

``Accelerator.save_state`` writes a directory with a file for each object, which may be cut off at any of them. These
functions put the same state into one checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from accelerate import Accelerator
    from accelerate.utils import DistributedType
except ImportError as error:
    raise ImportError("hpcelastic.training.accelerate needs the package accelerate: pip install accelerate") from error

from hpcelastic.errors import ConfigError

from .checkpoints import Checkpoints
from .random_numbers import gather_random_states, restore_random_state

_OWN_FORMATS = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def save_state(
    accelerator: Accelerator,
    checkpoints: Checkpoints,
    step: int,
    *,
    wait: bool = True,
    metrics: Mapping[str, float] | None = None,
) -> Path | None:
    """Save all that was passed to ``prepare`` and ``register_for_checkpointing``, as after ``step`` steps.

    Every rank calls this. Rank 0 returns the path of the checkpoint. ``wait`` and ``metrics`` are those of
    `Checkpoints.save`. The random numbers of all ranks are saved too. The position in the data is the step: prepare the
    DataLoader with ``split_batches=True`` and ``use_seedable_sampler=True``, and call ``skip_first_batches``.
    """
    parts = _parts(accelerator)
    random = gather_random_states()
    if not accelerator.is_main_process:
        return None
    states = {name: [part.state_dict() for part in of_kind] for name, of_kind in parts.items()}
    return checkpoints.save(step, {**states, "step": accelerator.step, "random": random}, wait=wait, metrics=metrics)


def load_state(accelerator: Accelerator, checkpoints: Checkpoints, *, best: bool = False) -> int:
    """Load the newest checkpoint, or the best one, and return its number of steps; 0 if there is none.

    Every rank calls this after ``prepare`` and ``register_for_checkpointing``, with the objects of `save_state`.
    """
    parts = _parts(accelerator)
    checkpoint = checkpoints.load(best=best)
    if checkpoint is None:
        return 0
    state = checkpoint.state
    for name, of_kind in parts.items():
        if len(of_kind) != len(state[name]):
            raise ConfigError(f"{checkpoint.path} has {len(state[name])} {name}, and this script has {len(of_kind)}")
        for part, saved in zip(of_kind, state[name], strict=True):
            part.load_state_dict(saved)
    accelerator.step = state["step"]
    restore_random_state(state["random"])
    return checkpoint.step


def _parts(accelerator: Accelerator) -> dict[str, list[Any]]:
    """Return the objects with a state, by kind, in the order in which they were passed to Accelerate."""
    if accelerator.distributed_type in _OWN_FORMATS:
        raise ConfigError(
            f"Accelerate saves the state of {accelerator.distributed_type.value} in a format of its own; use "
            "Accelerator.save_state, or Checkpoints with the state of the model and the optimizer"
        )
    # Accelerate has no public list of these objects. Its public save_state writes files, each rank its own.
    return {
        # Without DistributedDataParallel, whose names of parameters differ, and which one rank alone does not have.
        "models": [accelerator.unwrap_model(model) for model in accelerator._models],
        "optimizers": accelerator._optimizers,
        "schedulers": accelerator._schedulers,
        "custom objects": accelerator._custom_objects,
        "scalers": [] if accelerator.scaler is None else [accelerator.scaler],
    }
