"""An archive in memory is what torch.save writes, and is made with one copy of the tensors."""

import mmap
import os
import pickle
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcelastic.training import archive
from hpcelastic.training.archive import Archive, CannotLayOut, archive_of
from hpcelastic.training.seals import SEAL_LENGTH, find_damage, seal_text


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


BASE = torch.arange(100.0)
MODEL, OPTIMIZER = trained()
STATES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "numbers": {"step": 7, "loss": 0.25, "name": "a", "done": False, "none": None},
    "a model and its optimizer": {"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict()},
    "a view and its base": {"view": BASE[10:20], "base": BASE, "transposed": BASE.view(10, 10).t()},
    "parameters that are tied": {"a": MODEL[0].weight, "b": MODEL[0].weight},  # type: ignore[index]  # it is a Sequential
    "all types": {str(t): torch.ones(3).to(t) for t in (torch.float16, torch.bfloat16, torch.int8, torch.bool)},
    "no elements": {"a": torch.empty(0), "b": torch.empty(0, 5), "c": torch.ones(2)},
    "containers": {"o": OrderedDict(a=torch.ones(1)), "t": (1, [torch.zeros(2)]), "s": {1, 2}, "z": torch.Size([1, 2])},
    "a sparse tensor": {"sparse": torch.eye(3).to_sparse()},
    "a complex tensor": {"complex": torch.ones(3, dtype=torch.complex64).conj()},
}


def memory_for(laid_out: Archive, spare: int = 100) -> mmap.mmap:
    fd = os.memfd_create("test")
    os.truncate(fd, laid_out.size + SEAL_LENGTH + spare)
    return mmap.mmap(fd, 0)


def as_file(laid_out: Archive, path: Path) -> Path:
    memory = memory_for(laid_out)
    laid_out.copy_to(memory)
    data = memory[: laid_out.size]
    path.write_bytes(data + seal_text(zlib.crc32(data)))
    return path


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a.to_dense() if a.is_sparse else a, b.to_dense() if b.is_sparse else b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_archive_has_the_state(state: dict[str, Any], tmp_path: Path) -> None:
    path = as_file(archive_of(state), tmp_path / "state.pt")
    assert find_damage(path) is None
    assert equal(torch.load(path, weights_only=True), state)


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    path = as_file(archive_of({"a": torch.ones(1000)}), tmp_path / "state.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert find_damage(path) == "its checksum does not match its content"


def test_tensors_are_copied_once() -> None:
    """The layout has only a few bytes for each tensor, and up to 32 KiB at its end."""
    laid_out = archive_of({str(i): torch.ones(100_000) for i in range(10)})
    assert laid_out.size > 4_000_000
    assert sum(len(data) for _, data in laid_out.pieces) < 10_000 + 2**15


def test_the_archive_has_the_values_of_the_copy() -> None:
    state = {"a": torch.zeros(3)}
    laid_out = archive_of(state)
    memory = memory_for(laid_out)
    state["a"] += 1
    laid_out.copy_to(memory)
    state["a"] += 1
    (place, _), *_ = laid_out.contents
    assert torch.frombuffer(memory, dtype=torch.float32, count=3, offset=place).tolist() == [1, 1, 1]


class Own:
    """A class that no reader knows."""


def test_a_state_that_cannot_be_loaded_is_found_beforehand() -> None:
    laid_out = archive_of({"own": Own()})
    memory = memory_for(laid_out)
    laid_out.copy_to(memory)
    assert Own in laid_out.types
    with pytest.raises(pickle.UnpicklingError, match=r"test_archive\.Own"):
        laid_out.check(memory)


def test_a_state_that_can_be_loaded_passes_the_check() -> None:
    laid_out = archive_of(STATES["a model and its optimizer"])
    memory = memory_for(laid_out)
    laid_out.copy_to(memory)
    laid_out.check(memory)


def test_another_layout_than_expected_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive._Layout, "gaps", lambda layout: [(0, 7)])
    with pytest.raises(CannotLayOut, match="in another way"):
        archive_of({"a": torch.ones(3)})
