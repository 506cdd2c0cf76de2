"""Learning rates that follow the size of the batch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hpcelastic.training import Elastic, GlobalBatches
from hpcelastic.training.context import Context

DATA = torch.utils.data.TensorDataset(torch.ones(12, 1))


def make(rule: Any, schedule: str = "before") -> tuple[Elastic, torch.optim.SGD, Any]:
    """Return an `Elastic` whose learning rates are right for a batch of 2, and a schedule that halves them."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=1.0)
    made = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if schedule == "before" else None
    batches = GlobalBatches(12, 2, per_rank=4, lr=rule)
    elastic = Elastic(model=model, optimizer=optimizer, batches=batches)
    return elastic, optimizer, made or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def updates(elastic: Elastic, optimizer: torch.optim.SGD, last: int, after: Callable[[], None]) -> list[list[float]]:
    """Return how much each step has changed the parameters, whose gradients are 1."""
    found = []
    for _ in elastic.steps(DATA, last):
        before = [parameter.item() for parameter in elastic.model.parameters()]
        for parameter in elastic.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        found.append([was - now.item() for was, now in zip(before, elastic.model.parameters(), strict=True)])
        after()
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("schedule", ["before", "after"])
@pytest.mark.parametrize(("rule", "factors"), [("linear", [2, 4, 2]), ("sqrt", [2**0.5, 2, 2**0.5]), (None, [1, 1, 1])])
def test_a_step_is_scaled_and_the_schedule_sees_the_rates_of_the_user(
    rule: Any, factors: list[float], schedule: str
) -> None:
    """The batches have 4, 8 and, in the next epoch, 4 samples."""
    elastic, optimizer, halved = make(rule, schedule)
    rates: list[list[float]] = []

    def after() -> None:
        rates.append([group["lr"] for group in optimizer.param_groups])
        halved.step()

    found = updates(elastic, optimizer, 1, after)
    elastic._worker = Context(0, 0, 2, 1, "here", None)
    found += updates(elastic, optimizer, 2, after)
    elastic._worker = Context(0, 0, 1, 1, "here", None)
    found += updates(elastic, optimizer, 3, after)
    assert rates == [[1.0, 0.5], [0.5, 0.25], [0.25, 0.125]]
    for update, rate, factor in zip(found, rates, factors, strict=True):
        assert update == pytest.approx([value * factor for value in rate], rel=1e-5)


def test_a_step_that_raises_restores_the_rates() -> None:
    elastic, optimizer, _ = make("linear")
    seen = []

    def closure() -> float:
        seen.append([group["lr"] for group in optimizer.param_groups])
        raise ValueError("a defect of the loss")

    next(elastic.steps(DATA, last=1))
    with pytest.raises(ValueError, match="a defect"):
        optimizer.step(closure)
    assert seen == [[2.0, 1.0]]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5]


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    model, rate = torch.nn.Linear(1, 1), torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False, foreach=False)
    elastic = Elastic(model=model, optimizer=optimizer, batches=GlobalBatches(12, 2, per_rank=4, lr="linear"))
    before = model.weight.item()
    updates(elastic, optimizer, 1, lambda: None)  # type: ignore[arg-type]  # any optimizer does
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)
    assert before - model.weight.item() == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"per_rank": 0}, "per_rank is 0; it must be 1 or more"),
        ({"max_per_rank": -1}, "max_per_rank is -1; it must be 1 or more"),
        ({"per_rank": 2, "lr": "cubic"}, "lr is 'cubic'; it must be 'linear', 'sqrt' or None"),
        ({"lr": "sqrt"}, "lr='sqrt' needs per_rank"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GlobalBatches(12, 2, **arguments)


def test_the_methods_for_constant_batches_name_those_for_others() -> None:
    batches = GlobalBatches(12, 2, per_rank=4)
    for call in (batches.size, batches.indices):
        with pytest.raises(ValueError, match=r"use size_at\(\) and indices_at\(\)"):
            call(3)
    assert math.prod(batches.size_at(8, world_size) for world_size in (1, 2)) == 16
