"""The states of the random number generators of the ranks, as plain data for a checkpoint."""

import random
import sys
from typing import Any

from .context import context
from .process_groups import gather_objects


def gather_random_states() -> list[dict[str, Any]]:
    """Return the states of all ranks. Every rank calls this."""
    return gather_objects(_random_state())


def restore_random_state(states: list[dict[str, Any]]) -> None:
    """Restore the state of this rank. A rank that was not there when ``states`` were gathered keeps its own."""
    import torch

    rank = context().rank
    if rank >= len(states):
        return
    state = states[rank]
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy.random" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def _random_state() -> dict[str, Any]:
    import torch

    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has not annotated it
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy.random" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)  # an array cannot be loaded again
    return state
