"""Copies of nested containers: each container keeps its type and what it counts."""

import io
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.tensor  # a state may have sharded tensors only then

from hpcelastic.training import transfer
from hpcelastic.training.in_place import copied
from hpcelastic.training.leaves import leaves, map_leaves
from hpcelastic.training.shards import merge_parts, part_of

Pair = namedtuple("Pair", "x y")


def through_transfer(state: dict[str, Any]) -> Any:
    tensors: list[torch.Tensor] = []
    data = transfer._encoded(transfer._without_tensors(state, tensors))
    with torch.serialization.safe_globals([Pair]):
        skeleton = torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
    return transfer._with_tensors(skeleton, iter(tensors))


COPIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "parts of ranks": lambda state: merge_parts([part_of(state, 0)], state),
    "a transfer": through_transfer,
    "memory": lambda state: copied(state, state),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_each_copy_of_a_state_is_equal(copy: Callable[[dict[str, Any]], Any]) -> None:
    """The milestones of a schedule are a Counter, whose ``update`` adds."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5, 5])
    state = {"schedule": schedule.state_dict(), "shape": torch.zeros(2, 3).shape, "pair": Pair(1, [2])}
    made = copy(copy(state))
    assert made == state
    assert [type(value) for _, value in leaves(made)] == [type(value) for _, value in leaves(state)]
    assert type(made["schedule"]["milestones"]) is Counter
    assert type(made["shape"]) is torch.Size and type(made["pair"]) is Pair


def test_all_values_are_found_by_their_paths() -> None:
    state = {"a": [1, {"b": 2}], "c": Pair(3, ()), "d": OrderedDict(e=Counter({4: 5})), 6: None}
    expected = {("a", 0): 1, ("a", 1, "b"): 2, ("c", 0): 3, ("d", "e", 4): 5, (6,): None}
    assert dict(leaves(state)) == expected
    seen = {}
    map_leaves(lambda path, leaf: seen.setdefault(path, leaf), state)
    assert seen == expected
    assert [*leaves(7)] == [((), 7)]
