"""The computation of a scenario's run. It uses integers only, so the result does not depend on the assignment of ranks.

Pure. The state after a step depends on the state before it and on every sample of the step's batch. If a step is left
out, done twice in a row, or divided wrongly among the ranks, the digest is another one.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hpcelastic.training import GlobalBatches

WIDTH = 8
MODULUS = 2**31 - 1
"""A product of two smaller numbers fits into 64 bits."""


@dataclass(frozen=True)
class Plan:
    """The length of a run and its interval of checkpoints. The final digest depends only on the first two fields."""

    steps: int = 30
    seed: int = 0
    step_time: float = 0.05
    """Minimum duration of a step in seconds."""

    save_every: int = 5
    """Steps."""

    def __post_init__(self) -> None:
        if self.steps < 3 or self.save_every < 1:
            raise ValueError(f"{self}: steps must be 3 or more, save_every 1 or more")

    @property
    def gate(self) -> int:
        """The step before which all workers wait for the file ``finish`` in the run directory, until all faults are
        over."""
        return self.steps - 3

    @property
    def arguments(self) -> list[str]:
        """Arguments of the training script."""
        return [json.dumps(vars(self))]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Plan":
        parser = argparse.ArgumentParser()
        parser.add_argument("plan", type=json.loads)
        return cls(**parser.parse_args(arguments).plan)

    @property
    def batches(self) -> GlobalBatches:
        return GlobalBatches(samples=100, batch_size=16, seed=self.seed)


def first_state() -> list[int]:
    return list(range(1, WIDTH + 1))


def share(state: Sequence[int], step: int, samples: Sequence[int]) -> list[int]:
    """Return the contribution of some samples of a step's batch. The contributions of all samples add up."""
    return [sum((value * (sample + 2) + step) % MODULUS for sample in samples) % MODULUS for value in state]


def advance(state: Sequence[int], total: Sequence[int]) -> list[int]:
    """Return the state after a step, from the sum of all contributions."""
    return [
        (31 * value + added + place) % MODULUS for place, (value, added) in enumerate(zip(state, total, strict=True))
    ]


def digest(state: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(state)).encode()).hexdigest()[:16]


def undisturbed(plan: Plan) -> str:
    """Return the digest of a run without faults."""
    state = first_state()
    for step in range(plan.steps):
        state = advance(state, share(state, step, plan.batches.indices(step)))
    return digest(state)
