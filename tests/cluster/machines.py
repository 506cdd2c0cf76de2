"""The hosts of a cluster before their start, with the files that all of them share."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import slurm_conf
from tests.cluster.host import Host
from tests.cluster.network import Switch
from tests.cluster.slurm_conf import CONTROLLER, Site

# Variables of a SLURM job in which the tests may run. The commands would use that job's cluster.
_FOREIGN = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_")


@dataclass(frozen=True)
class Shape:
    """The user's settings of a cluster: nodes, and processors, GPUs, network and set-up of each node."""

    nodes: int
    cpus: int
    gpus: int | tuple[int, ...]
    extra_conf: str
    topology: str
    ipv6: bool
    setup: str
    more_files: Mapping[str, str]


@dataclass(frozen=True)
class Machines:
    """All hosts, the shared directory, the name of this machine's link to the hosts, and the environment of clients."""

    path: Path
    uplink: str
    env: dict[str, str]
    controller: Host
    nodes: list[Host]


def assemble(shape: Shape, resources: ExitStack) -> Machines:
    """Return the machines. Closing `resources` stops the hosts and removes all their resources in the right order."""
    path = _directory(resources)
    switch = Switch(str(path), ipv6=shape.ipv6)
    resources.callback(switch.close)
    site = _site(shape, path, switch)
    _write(site)
    controller = Host(CONTROLLER, site.controller, ["slurmctld", "-D"], switch, path)
    nodes = [
        Host(name, address, ["slurmd", "-D", "-N", name], switch, path, shape.setup)
        for name, address in site.nodes.items()
    ]
    for host in (controller, *nodes):
        resources.callback(host.close)
    return Machines(path, switch.uplink, _client_environment(path), controller, nodes)


def _directory(resources: ExitStack) -> Path:
    scratch = tempfile.TemporaryDirectory(prefix="slurm-cluster-", ignore_cleanup_errors=True)
    path = Path(resources.enter_context(scratch))
    path.chmod(0o755)
    for name in ("log", "state", "spool"):
        (path / name).mkdir()
    return path


def _site(shape: Shape, path: Path, switch: Switch) -> Site:
    return Site(
        name=switch.uplink,
        directory=path,
        controller=switch.address(253),
        gateway=switch.gateway,
        nodes={f"n{number}": switch.address(number) for number in range(1, shape.nodes + 1)},
        cpus=shape.cpus,
        gpus=shape.gpus if isinstance(shape.gpus, tuple) else (shape.gpus,) * shape.nodes,
        extra_conf=shape.extra_conf,
        topology=shape.topology,
        more_files=shape.more_files,
    )


def _write(site: Site) -> None:
    for name, text in slurm_conf.files(site, socket.gethostname()).items():
        (site.directory / name).write_text(text)
    for index in range(max(site.gpus)):
        Path(slurm_conf.gpu_file(site, index)).symlink_to("/dev/null")


def _client_environment(path: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**env, "SLURM_CONF": str(path / "slurm.conf")}
