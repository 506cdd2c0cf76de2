"""The comparison of replicas by checksums of their parameters."""

import pytest
import torch

from hpcelastic.errors import PoisonedState
from hpcelastic.training import replicas
from hpcelastic.training.replicas import check_replicas, checksum, differing_ranks


@pytest.mark.parametrize(
    ("sums", "ranks"),
    [
        ([7, 7, 7], []),
        ([7, 8, 7], [1]),
        ([7, 8, 7, 9, 7], [1, 3]),
        ([7, 8], [0, 1]),
        ([7, 8, 9], [0, 1, 2]),
        ([7, 7, 8, 8], [0, 1, 2, 3]),
        ([7], []),
    ],
)
def test_the_ranks_that_are_not_like_most(sums: list[int], ranks: list[int]) -> None:
    assert differing_ranks(sums) == ranks


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1).bfloat16())


def test_equal_models_have_equal_checksums() -> None:
    assert checksum(model()) == checksum(model())


@pytest.mark.parametrize("name", [*model().state_dict()])
def test_each_bit_of_each_tensor_counts(name: str) -> None:
    changed = model()
    tensor = changed.state_dict()[name]
    bits = tensor.reshape(-1).view(torch.uint8)
    bits[len(bits) // 2] ^= 1
    assert checksum(changed) != checksum(model())


@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, None), (1, None), (2, "rank 2 has other parameters than the other 2 after 40 steps")],
)
def test_the_rank_that_differs_ends(rank: int, message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(replicas, "gather_objects", lambda mine: [5, 5, 6])
    if message is None:
        check_replicas(model(), 40, None)
        return
    with pytest.raises(PoisonedState, match=f"^{message}$"):
        check_replicas(model(), 40, None)


def test_without_a_majority_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "gather_objects", lambda mine: [5, 6])
    with pytest.raises(PoisonedState, match=r"^the parameters of the 2 ranks differ"):
        check_replicas(model(), 40, None)
