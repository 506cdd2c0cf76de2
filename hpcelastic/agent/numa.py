"""Selects the processors near a GPU as torch's NUMA binding does, from the processors that the agent may use.

The binding that SLURM has set remains the limit. Sources: torch/numa/binding.py; the kernel's Documentation/ABI on
sysfs-devices-node, sysfs-devices-system-cpu and sysfs-bus-pci.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from hpcelastic.agent.settings import Numa
from hpcelastic.errors import ConfigError
from hpcelastic.health.gpus import GpuQueryRefused, bus_addresses

_QUERY_TIMEOUT = 60.0
"""Seconds in which the driver must list the GPUs."""


def processors(mode: Numa, workers: int, environ: Mapping[str, str], allowed: Collection[int]) -> list[set[int]]:
    """Return the processors of each worker, by local rank. Empty sets mean no binding. Raises ConfigError."""
    if mode == "none":
        return [set() for _ in range(workers)]
    remedy = "leave out workers.numa (--numa-binding)"
    try:
        machine = Machine(bus_addresses(environ, _QUERY_TIMEOUT), allowed)
        if workers > len(machine.gpus):
            raise GpuQueryRefused(
                f"there are {workers} workers and {len(machine.gpus)} GPUs, but each worker is bound near its own GPU"
            )
        return [machine.near(mode, gpu) for gpu in range(workers)]
    except (GpuQueryRefused, OSError, ValueError) as error:
        raise ConfigError(f"workers.numa is {mode}: {error}; {remedy}") from error


class Machine:
    """Processors and GPUs, as the directory ``root`` describes them. GPUs are given by their PCI addresses."""

    def __init__(self, gpus: Sequence[str], allowed: Collection[int], root: Path = Path("/sys")) -> None:
        self.gpus = gpus
        self._allowed = set(allowed)
        self._root = root

    def near(self, mode: Numa, gpu: int) -> set[int]:
        """Return the processors for the worker that uses ``gpu``. Raises GpuQueryRefused if there are none, OSError."""
        node = self._node(gpu)
        here = self._processors_of(node) & self._allowed
        if mode == "socket":
            socket = self._socket(min(self._processors_of(node)))
            here = {cpu for cpu in self._allowed if self._socket(cpu) == socket}
        elif mode == "exclusive" and here:
            here = self._exclusive_share(gpu, self._grouped(here, self._siblings))
        elif mode == "core-complex" and here:
            here = self._core_complex(gpu, self._grouped(here, self._sharing_cache))
        if not here:
            why = f"none of the {len(self._allowed)} processors that this agent may use is left for GPU {gpu}"
            raise GpuQueryRefused(f"{why}, at NUMA node {node}; request more from SLURM, for example with --exclusive")
        return here

    def _exclusive_share(self, gpu: int, cores: list[set[int]]) -> set[int]:
        """Return whole cores, the same number for each GPU of the NUMA node. The first GPUs get the remaining ones."""
        index, count = self._index_and_count(gpu)
        size, left = divmod(len(cores), count)
        begin = index * size + min(index, left)
        return set().union(*cores[begin : begin + size + (index < left)])

    def _core_complex(self, gpu: int, caches: list[set[int]]) -> set[int]:
        """Return all processors that share one last-level cache: a different one for each GPU, the largest first."""
        return sorted(caches, key=lambda cpus: -len(cpus))[self._index_and_count(gpu)[0] % len(caches)]

    def _index_and_count(self, gpu: int) -> tuple[int, int]:
        """Return the index of the GPU among the GPUs of its NUMA node, and their number."""
        node = self._node(gpu)
        on_node = [other for other in range(len(self.gpus)) if self._node(other) == node]
        return on_node.index(gpu), len(on_node)

    def _grouped(self, cpus: set[int], group: Callable[[int], set[int]]) -> list[set[int]]:
        """Return ``cpus`` by the groups that they belong to, in the order of the groups' first members."""
        found: dict[int, set[int]] = {}
        for cpu in sorted(cpus):
            found.setdefault(min(group(cpu)), set()).add(cpu)
        return [found[first] for first in sorted(found)]

    def _node(self, gpu: int) -> int:
        """Return the GPU's NUMA node. A machine with only one may call it -1."""
        return max(0, int(self._read(f"bus/pci/devices/{self.gpus[gpu]}/numa_node")))

    def _processors_of(self, node: int) -> set[int]:
        return _parse_ranges(self._read(f"devices/system/node/node{node}/cpulist"))

    def _socket(self, cpu: int) -> int:
        return int(self._read(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def _siblings(self, cpu: int) -> set[int]:
        return _parse_ranges(self._read(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))

    def _sharing_cache(self, cpu: int) -> set[int]:
        caches = f"devices/system/cpu/cpu{cpu}/cache"
        levels = {}
        for path in (self._root / caches).glob("index[0-9]*"):
            if self._read(f"{caches}/{path.name}/type") in ("Unified", "Data"):
                levels[int(self._read(f"{caches}/{path.name}/level"))] = f"{caches}/{path.name}/shared_cpu_list"
        return _parse_ranges(self._read(levels[max(levels)]))

    def _read(self, path: str) -> str:
        return (self._root / path).read_text().strip()


def _parse_ranges(text: str) -> set[int]:
    """Return the numbers in a text such as ``0-3,8``."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found
