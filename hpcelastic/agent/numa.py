"""Which processors are near a GPU: the choices of torch's NUMA binding, of those processors that the agent may use.

What SLURM has bound the agent to stays the limit. Sources: torch/numa/binding.py; the kernel's Documentation/ABI on
sysfs-devices-node, sysfs-devices-system-cpu and sysfs-bus-pci.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from hpcelastic.agent.settings import Numa
from hpcelastic.errors import ConfigError
from hpcelastic.health.gpus import Refused, bus_addresses

_PATIENCE = 60.0
"""Seconds in which the driver has listed the GPUs."""


def processors(mode: Numa, workers: int, environ: Mapping[str, str], allowed: Collection[int]) -> list[set[int]]:
    """The processors of each worker, by local rank; none for each where nothing is to be bound. Raises ConfigError."""
    if mode == "none":
        return [set() for _ in range(workers)]
    remedy = "leave out workers.numa (--numa-binding)"
    try:
        machine = Machine(bus_addresses(environ, _PATIENCE), allowed)
        if workers > len(machine.gpus):
            raise Refused(f"there are {workers} workers and {len(machine.gpus)} GPUs, and each is bound near its own")
        return [machine.near(mode, gpu) for gpu in range(workers)]
    except (Refused, OSError, ValueError) as error:
        raise ConfigError(f"workers.numa is {mode}: {error}; {remedy}") from error


class Machine:
    """Processors and GPUs, the latter by their addresses on PCI, as the directory ``root`` tells."""

    def __init__(self, gpus: Sequence[str], allowed: Collection[int], root: Path = Path("/sys")) -> None:
        self.gpus = gpus
        self._allowed = set(allowed)
        self._root = root

    def near(self, mode: Numa, gpu: int) -> set[int]:
        """The processors for the worker that uses ``gpu``. Raises Refused where there are none, OSError."""
        node = self._node(gpu)
        here = self._of_node(node) & self._allowed
        if mode == "socket":
            socket = self._socket(min(self._of_node(node)))
            here = {cpu for cpu in self._allowed if self._socket(cpu) == socket}
        elif mode == "exclusive" and here:
            here = self._share(gpu, self._grouped(here, self._siblings))
        elif mode == "core-complex" and here:
            here = self._complex(gpu, self._grouped(here, self._sharing_cache))
        if not here:
            why = f"none of the {len(self._allowed)} processors that this agent may use is left for GPU {gpu}"
            raise Refused(f"{why}, at NUMA node {node}; ask SLURM for more, as with --exclusive")
        return here

    def _share(self, gpu: int, cores: list[set[int]]) -> set[int]:
        """Whole cores, as many for each GPU of the NUMA node; the first ones have those that are left over."""
        place, count = self._place(gpu)
        size, left = divmod(len(cores), count)
        begin = place * size + min(place, left)
        return set().union(*cores[begin : begin + size + (place < left)])

    def _complex(self, gpu: int, caches: list[set[int]]) -> set[int]:
        """All that share one cache of the last level: another one for each GPU, the largest first."""
        return sorted(caches, key=lambda cpus: -len(cpus))[self._place(gpu)[0] % len(caches)]

    def _place(self, gpu: int) -> tuple[int, int]:
        """Which of the GPUs of its NUMA node it is, and how many there are."""
        node = self._node(gpu)
        beside = [other for other in range(len(self.gpus)) if self._node(other) == node]
        return beside.index(gpu), len(beside)

    def _grouped(self, cpus: set[int], group: Callable[[int], set[int]]) -> list[set[int]]:
        """``cpus`` by the groups that they belong to, in the order of their first members."""
        found: dict[int, set[int]] = {}
        for cpu in sorted(cpus):
            found.setdefault(min(group(cpu)), set()).add(cpu)
        return [found[first] for first in sorted(found)]

    def _node(self, gpu: int) -> int:
        """Its NUMA node; a machine with one only may call it -1."""
        return max(0, int(self._read(f"bus/pci/devices/{self.gpus[gpu]}/numa_node")))

    def _of_node(self, node: int) -> set[int]:
        return _numbers(self._read(f"devices/system/node/node{node}/cpulist"))

    def _socket(self, cpu: int) -> int:
        return int(self._read(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def _siblings(self, cpu: int) -> set[int]:
        return _numbers(self._read(f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))

    def _sharing_cache(self, cpu: int) -> set[int]:
        caches = f"devices/system/cpu/cpu{cpu}/cache"
        levels = {}
        for path in (self._root / caches).glob("index[0-9]*"):
            if self._read(f"{caches}/{path.name}/type") in ("Unified", "Data"):
                levels[int(self._read(f"{caches}/{path.name}/level"))] = f"{caches}/{path.name}/shared_cpu_list"
        return _numbers(self._read(levels[max(levels)]))

    def _read(self, path: str) -> str:
        return (self._root / path).read_text().strip()


def _numbers(text: str) -> set[int]:
    """The numbers in ``0-3,8``."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found
