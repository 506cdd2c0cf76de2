"""The process groups of a GPU, as far as no GPU is needed. `make gpu` tests them with NCCL."""

import os
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.distributed_c10d as c10d

from hpcelastic.training.device_groups import abort_device_groups, backends, carrier, leave_errors_to_agent


@pytest.mark.parametrize(
    ("device", "config", "expected"),
    [
        ("cpu", "cpu:gloo,cuda:nccl", "cpu"),
        ("cuda", "cpu:gloo,cuda:nccl", "cuda"),
        ("cpu", "cuda:nccl", "cuda"),
        ("cuda", "cuda:nccl", "cuda"),
        ("cpu", "cpu:gloo,cuda:gloo", "cpu"),
        ("cuda", "cpu:gloo,cuda:gloo", "cpu"),
        ("cuda", "cpu:gloo", "cpu"),
        ("xpu", "cpu:gloo,xpu:xccl", "xpu"),
    ],
)
def test_a_tensor_is_sent_from_memory_that_the_backend_knows(device: str, config: str, expected: str) -> None:
    assert carrier(device, config) == expected


def test_a_group_of_a_gpu_also_communicates_from_the_memory_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends() is None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert backends() == "cpu:gloo,cuda:nccl"


def test_all_groups_are_aborted_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together, ended = threading.Barrier(3), list[str]()

    def abort(name: str) -> None:
        together.wait(30)
        ended.append(name)
        raise RuntimeError("this backend cannot be aborted")

    groups = {SimpleGroup(lambda name=name: abort(name)): name for name in "abc"}  # type: ignore[misc]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(c10d, "_world", SimpleNamespace(pg_names=groups))
    abort_device_groups()
    assert sorted(ended) == ["a", "b", "c"]


class SimpleGroup:
    def __init__(self, abort: object) -> None:
        self.abort = abort


@pytest.mark.parametrize("size", [None, "500"])
def test_torch_leaves_errors_to_the_agent(monkeypatch: pytest.MonkeyPatch, size: str | None) -> None:
    monkeypatch.setattr(os, "environ", {} if size is None else {"TORCH_FR_BUFFER_SIZE": size})
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    leave_errors_to_agent()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == (size or "0")


def test_without_cuda_the_flight_record_of_gloo_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    leave_errors_to_agent()
    assert not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & os.environ.keys()
