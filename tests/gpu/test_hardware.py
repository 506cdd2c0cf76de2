"""The hardware of a real GPU: the library of the driver, and the benchmark of a node."""

import os

import pytest

from hpcelastic.agent.hardware_watch import sources_of
from hpcelastic.doctor.benchmark import MeasurerProcess
from hpcelastic.health.gpus import device_files
from hpcelastic.health.nvidia import NvidiaGpus, nvidia_gpus
from hpcelastic.worker.node_benchmark import COMMAND

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device_files(), reason="no GPU of NVIDIA on this machine"),
]


def test_a_healthy_gpu_is_watched_without_a_finding() -> None:
    watched = nvidia_gpus(os.environ)
    assert isinstance(watched, NvidiaGpus) and len(watched._gpus) >= 1
    assert [*watched.look()] == []
    assert "GPUs" in sources_of(os.environ)


def test_the_benchmark_measures_each_gpu() -> None:
    measurer = MeasurerProcess(COMMAND, os.environ)
    try:
        measurer.ask({"do": "compute"})
        devices = measurer.answer()
    finally:
        measurer.close()
    assert devices and all(device["device"].startswith("GPU ") for device in devices)
    assert all(device["flops"] > 1e12 and device["memory"] > 1e10 for device in devices)


def test_two_nodes_measure_their_collectives() -> None:
    """NCCL refuses two ranks of one host on the same GPU, so each process claims to be a host of its own."""
    one, other = (MeasurerProcess(COMMAND, {**os.environ, "NCCL_HOSTID": name}) for name in ("a", "b"))
    try:
        one.ask({"do": "serve", "address": "127.0.0.1"})
        other.ask({"do": "connect", "address": "127.0.0.1", **one.answer()})
        results = [one.answer(), other.answer()]
    finally:
        one.close()
        other.close()
    assert all(result["gather"] > 1e7 and result["bandwidth"] > 1e7 for result in results), results
