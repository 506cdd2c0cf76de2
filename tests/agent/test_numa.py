"""The processors to which a worker is bound: torch's own choice, on simulated machines."""

import os
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from hpcelastic.agent.numa import Machine, processors
from hpcelastic.agent.settings import Numa
from hpcelastic.errors import ConfigError
from hpcelastic.health.gpus import GpuQueryRefused
from tests.health.fake_gpus import nvml

MODES = [mode for mode in get_args(Numa) if mode != "none"]


@dataclass(frozen=True)
class Layout:
    """Sockets of NUMA nodes of cores with ``threads``. ``gpus`` has the node of each GPU, as in the kernel."""

    gpus: tuple[int, ...]
    sockets: int = 2
    nodes: int = 2
    cores: int = 6
    cores_per_cache: int = 3
    threads: int = 2

    @property
    def cpus(self) -> int:
        return self.sockets * self.nodes * self.cores * self.threads

    def core_of(self, cpu: int) -> int:
        """The second threads have higher numbers than all first ones, as on Linux."""
        return cpu % (self.cpus // self.threads)

    def sharing(self, cpu: int, cores: int) -> list[int]:
        return [c for c in range(self.cpus) if self.core_of(c) // cores == self.core_of(cpu) // cores]


LAYOUTS = {
    "several": Layout((3, 0, 0, 1, 0)),
    "one node": Layout((-1, -1), sockets=1, nodes=1, cores=8, cores_per_cache=8, threads=1),
    "one node for each socket": Layout((0, 0, 1, 1), nodes=1, cores=5, cores_per_cache=2),
}


def address(gpu: int) -> str:
    return f"0000:{16 + gpu:02x}:00.0"


def write(root: Path, layout: Layout) -> None:
    """Write the part of /sys that describes such a machine."""

    def put(path: str, text: object) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")

    def listed(cpus: list[int]) -> str:
        return ",".join(map(str, cpus))

    count = layout.sockets * layout.nodes
    put("devices/system/node/possible", f"0-{count - 1}" if count > 1 else "0")
    for node in range(count):
        put(f"devices/system/node/node{node}/cpulist", listed(layout.sharing(node * layout.cores, layout.cores)))
    for cpu in range(layout.cpus):
        here = f"devices/system/cpu/cpu{cpu}"
        put(f"{here}/topology/physical_package_id", layout.core_of(cpu) // (layout.cores * layout.nodes))
        put(f"{here}/topology/thread_siblings_list", listed(layout.sharing(cpu, 1)))
        for index, (level, kind) in enumerate([(1, "Data"), (4, "Instruction"), (3, "Unified")]):
            put(f"{here}/cache/index{index}/level", level)
            put(f"{here}/cache/index{index}/type", kind)
            shared = layout.sharing(cpu, layout.cores_per_cache if level == 3 else 1)
            put(f"{here}/cache/index{index}/shared_cpu_list", listed(shared))
    for gpu, node in enumerate(layout.gpus):
        put(f"bus/pci/devices/{address(gpu)}/numa_node", node)


def machine(root: Path, layout: Layout, allowed: set[int]) -> Machine:
    return Machine([address(gpu) for gpu in range(len(layout.gpus))], allowed, root)


@pytest.fixture
def torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return torch's choice on the machine that is written in ``tmp_path``."""
    torch = pytest.importorskip("torch")
    binding = pytest.importorskip("torch.numa.binding")
    names = os.listdir
    monkeypatch.setattr(
        binding, "open", lambda path: StringIO(Path(f"{tmp_path}{path[4:]}").read_text()), raising=False
    )
    monkeypatch.setattr(os, "listdir", lambda path: names(f"{tmp_path}{path[4:]}"))

    def choice(mode: str, layout: Layout, allowed: set[int], gpu: int) -> set[int]:
        def properties(gpu: int) -> SimpleNamespace:
            return SimpleNamespace(pci_domain_id=0, pci_bus_id=16 + gpu, pci_device_id=0)

        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(layout.gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(binding, "_get_allowed_cpu_indices_for_current_thread", lambda: allowed)
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        return set(binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options))

    return choice


@pytest.mark.parametrize("part", [1, 2], ids=["whole machine", "every other core"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_binding_is_torchs_choice(layout: Layout, part: int, tmp_path: Path, torchs: Any) -> None:
    write(tmp_path, layout)
    allowed = {cpu for cpu in range(layout.cpus) if layout.core_of(cpu) % part == 0}
    here = machine(tmp_path, layout, allowed)
    for mode in MODES:
        ours = [here.near(mode, gpu) for gpu in range(len(layout.gpus))]
        assert ours == [torchs(mode, layout, allowed, gpu) for gpu in range(len(layout.gpus))], mode
        assert all(cpus <= allowed for cpus in ours)
        if mode == "exclusive":
            assert sum(map(len, ours)) == len(set().union(*ours))


def test_modes_differ(tmp_path: Path) -> None:
    layout = LAYOUTS["several"]
    write(tmp_path, layout)
    here = machine(tmp_path, layout, set(range(layout.cpus)))
    assert [len(here.near(mode, 1)) for mode in MODES] == [12, 24, 4, 6]
    assert here.near("exclusive", 2) == {2, 3, 26, 27}


def test_a_gpu_without_processors_near_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["several"])
    here = machine(tmp_path, LAYOUTS["several"], {0, 1})
    assert here.near("node", 1) == {0, 1}
    for mode, gpu in (("node", 0), ("socket", 0), ("exclusive", 4), ("core-complex", 3)):
        with pytest.raises(GpuQueryRefused, match=f"none of the 2 processors .* left for GPU {gpu}, at NUMA node"):
            here.near(mode, gpu)  # type: ignore[arg-type]  # one of Numa


def test_gpus_are_found_by_index_and_by_uuid(tmp_path: Path) -> None:
    """Entries are found by index and by UUID, in the given order. Other entries are refused."""
    environ = nvml(tmp_path)
    for visible, problem in {
        "GPU-0f2e,0": "0000:43:00.0/numa_node",  # the second GPU, which this machine does not have
        "0": "0000:1b:00.0/numa_node",
        "MIG-0f2e": "names MIG-0f2e, which the driver does not list",
        "": "there are 1 workers and 0 GPUs",
    }.items():
        with pytest.raises(ConfigError, match=f"^workers.numa is node: .*{problem}.*; leave out workers.numa"):
            processors("node", 1, environ | {"CUDA_VISIBLE_DEVICES": visible}, {0})


def test_without_a_binding_nothing_is_queried() -> None:
    assert processors("none", 2, {"PATH": ""}, {0}) == [set(), set()]
