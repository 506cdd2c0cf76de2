"""The parts of sharded states. A process group without a network lets one process act as each rank in turn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpcelastic.errors import StoreError
from hpcelastic.training.shards import is_sharded, merge_parts, part_of

Mesh = tuple[int, ...]
"""The number of ranks in each dimension."""


@contextmanager
def acting_as(rank: int, mesh: Mesh) -> Iterator[Any]:
    """Act as one rank; yield the device mesh."""
    world_size = torch.Size(mesh).numel()
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", mesh)
    finally:
        dist.destroy_process_group()


def distribute(whole: torch.Tensor, mesh: Any, placements: Sequence[Placement]) -> DTensor:
    """Return the DTensor of this rank."""
    empty = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return empty.redistribute(mesh, placements)  # cuts, and sends nothing


def saved(state: Any, mesh: Mesh) -> list[dict[str, Any]]:
    """Return the parts of all ranks; ``state`` is called with the mesh of each."""
    parts = []
    for rank in range(torch.Size(mesh).numel()):
        with acting_as(rank, mesh) as device_mesh:
            parts.append(part_of(state(device_mesh), rank))
    return parts


SHARDED: dict[int, list[list[Placement]]] = {
    1: [[Shard(0)], [Shard(1)], [Replicate()]],
    2: [[Replicate(), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Replicate()]],
}
layouts = st.sampled_from([(1,), (2,), (3,), (5,), (2, 2), (2, 3)]).flatmap(
    lambda mesh: st.tuples(st.just(mesh), st.sampled_from(SHARDED[len(mesh)]))
)


@settings(max_examples=40)
@given(before=layouts, after=layouts, rows=st.integers(1, 7), columns=st.integers(1, 4))
def test_any_ranks_read_what_any_other_ranks_have_saved(
    before: tuple[Mesh, list[Placement]], after: tuple[Mesh, list[Placement]], rows: int, columns: int
) -> None:
    whole = torch.arange(float(rows * columns)).reshape(rows, columns)
    (old, old_placements), (new, new_placements) = before, after
    parts = saved(lambda mesh: {"model": {"w": distribute(whole, mesh, old_placements)}, "step": 7}, old)
    assert sum(block.numel() for part in parts for _, _, block in part["blocks"].values()) == whole.numel()
    for rank in range(torch.Size(new).numel()):
        with acting_as(rank, new) as mesh:
            like = {"model": {"w": distribute(torch.zeros_like(whole), mesh, new_placements)}}
            merged = merge_parts(parts, like)
            assert merged["step"] == 7
            assert merged["model"]["w"] is like["model"]["w"]
            assert torch.equal(merged["model"]["w"].to_local(), distribute(whole, mesh, new_placements).to_local())


def test_what_is_not_sharded_comes_from_rank_0() -> None:
    def state(mesh: Any) -> dict[str, Any]:
        shard = distribute(torch.zeros(4), mesh, [Shard(0)])
        return {"w": shard, "nested": [torch.ones(2), (1, "a", None)], "rank": dist.get_rank()}

    parts = saved(state, (2,))
    assert parts[1]["state"] is None
    with acting_as(0, (1,)) as mesh:
        merged = merge_parts(parts, state(mesh))
    assert torch.equal(merged["nested"][0], torch.ones(2))
    assert merged["nested"][1] == (1, "a", None)
    assert merged["rank"] == 0


def parts_of_four(names: Sequence[str] = ("w",)) -> list[dict[str, Any]]:
    return saved(lambda mesh: {name: distribute(torch.zeros(4, 2), mesh, [Shard(0)]) for name in names}, (2,))


def test_a_missing_block_is_an_error() -> None:
    parts = parts_of_four()[:1]
    with acting_as(0, (1,)) as mesh, pytest.raises(StoreError, match=r"lacks 4 of the 8 elements of \['w'\]"):
        merge_parts(parts, {"w": distribute(torch.zeros(4, 2), mesh, [Shard(0)])})


def test_another_shape_is_an_error() -> None:
    parts = parts_of_four()
    with acting_as(0, (1,)) as mesh, pytest.raises(StoreError, match=r"\['w'\] has the shape \(4, 2\).*not \(4, 3\)"):
        merge_parts(parts, {"w": distribute(torch.zeros(4, 3), mesh, [Shard(0)])})


def test_a_tensor_that_the_script_does_not_have_is_an_error() -> None:
    parts = parts_of_four(["w", "extra"])
    with acting_as(0, (1,)) as mesh, pytest.raises(StoreError, match=r"sharded tensor \['extra'\]"):
        merge_parts(parts, {"w": distribute(torch.zeros(4, 2), mesh, [Shard(0)])})


def test_partial_sums_are_refused() -> None:
    with acting_as(0, (2,)) as mesh, pytest.raises(ValueError, match="partial"):
        part_of({"w": DTensor.from_local(torch.zeros(2), mesh, [Partial()], run_check=False)}, 0)


def test_only_a_state_with_sharded_tensors_is_sharded() -> None:
    assert not is_sharded({"w": torch.zeros(2), "n": [1]})
    with acting_as(0, (1,)) as mesh:
        assert is_sharded({"a": [{"w": distribute(torch.zeros(2), mesh, [Shard(0)])}]})
