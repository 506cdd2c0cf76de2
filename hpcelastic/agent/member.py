"""The identity of a node: its name, address and position in the job, and its earlier incarnations that are dead."""

import contextlib
import itertools
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.address import own_address
from hpcelastic.agent.guard_main import kill_marked_processes
from hpcelastic.agent.settings import WorkerSettings
from hpcelastic.backends.backend import Backend
from hpcelastic.errors import ConfigError, NameTaken
from hpcelastic.protocol.settings import NodeRange
from hpcelastic.protocol.state import Member, NodeState, job_start
from hpcelastic.storage.paths import safe_name

LOCAL_JOB_PREFIX = "local-"
"""The jobs of agents that act as several nodes on one machine begin with it. SLURM's jobs are numbers."""


@dataclass(frozen=True)
class NodeIdentity:
    """The node on which an agent runs, as described by the program that started the agent."""

    name: str
    """Name of the node, unique in the run."""

    job: str = ""
    """The job that started this agent and those of the other nodes; empty if unknown."""

    job_nodes: int = 0
    """Number of nodes of ``job``; 0 if unknown."""

    restart: int = 0
    """How often the job was requeued."""

    order: int = 0
    """Position of the node in the job."""

    address: str = ""
    """Address at which other nodes reach this one; empty to detect it."""

    launcher: str = ""
    """Address of the node that started the agent; empty if unknown."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if unknown."""

    host: str = ""
    """SLURM's name of the node if ``name`` differs from it; else empty."""


def require_topology(identity: NodeIdentity, nodes: NodeRange) -> None:
    """Raise ConfigError if groups of nodes must be at one place, and SLURM does not tell the place of this one."""
    in_slurm = identity.job and not identity.job.startswith(LOCAL_JOB_PREFIX)
    if nodes.within and in_slurm and not identity.topology:
        raise ConfigError(
            f"nodes.within is {nodes.within}, but SLURM tells {identity.name} no topology (SLURM_TOPOLOGY_ADDR is not "
            "set); remove nodes.within, or ask for TopologyPlugin=topology/tree or topology/block in slurm.conf"
        )


def new_member(identity: NodeIdentity, local_world_size: int, dead: tuple[str, ...], role: str = "") -> Member:
    """Return a new incarnation of the node, in no round yet. An empty ``role`` is the default role."""
    return Member(
        node=f"{safe_name(identity.name)}@{identity.restart}-{secrets.token_hex(4)}",
        node_state=NodeState.READY,
        round=-1,
        local_world_size=local_world_size,
        address=identity.address or own_address(launcher=identity.launcher),
        port=0,
        order=identity.order,
        job=f"{identity.job}.{identity.restart}" if identity.job else "",
        job_nodes=identity.job_nodes,
        host=identity.host,
        topology=identity.topology,
        role=role,
        process=this_process(),
        dead=dead,
    )


def dead_incarnations(backend: Backend, identity: NodeIdentity) -> tuple[str, ...]:
    """Return the earlier incarnations of this node that have no process left. Nobody waits for their leases.

    Raises NameTaken if one is still alive on this machine: two agents would use the same GPUs.
    """
    dead = []
    for lease in backend.leases(safe_name(identity.name), processes=True).values():
        same_machine, alive = process_status(lease.member.process)
        if alive and lease.member.node_state is not NodeState.LEFT:
            raise name_taken_error(identity.name, int(lease.member.process.split(":")[2]))
        if same_machine:
            kill_marked_processes(lease.member.node)  # its guard may still be killing them, or have died with it
        if same_machine or _requeued(lease.member, identity):
            dead.append(lease.member.node)
    return tuple(dead)


def name_taken_error(name: str, pid: int) -> NameTaken:
    """Return the error that process ``pid`` of this machine already runs as node ``name``.

    ``pid`` is 0 if the process cannot be seen from here.
    """
    return NameTaken(
        f"node {name} is in this run already, as process {pid or 'of another container'} on this machine; "
        "stop that agent, or give this one another name with --node-name"
    )


def count_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the number of NVIDIA or AMD GPUs of this process, as the environment lists them.

    Without such a list, count the GPUs of the machine at ``root``.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            gpus = (gpu.strip() for gpu in environ[name].split(","))
            valid = itertools.takewhile(lambda gpu: gpu not in ("", "-1", "NoDevFiles"), gpus)
            return len(list(valid))  # CUDA ignores the entries after an invalid one
    return sum(1 for _ in (root / "dev").glob("nvidia[0-9]*")) or _count_amd_gpus(root)


def overcommit_warnings(workers: int, gpus: int, cpus: int) -> list[str]:
    """Return a line for each kind of resource of which this node has fewer than ``workers``. No GPUs give no line."""
    lines = []
    if 0 < gpus < workers:
        lines.append(
            f"{workers} workers and {gpus} GPU{'s' * (gpus != 1)} on this node: a script that gives each worker the "
            "GPU of its LOCAL_RANK fails; request more GPUs or fewer workers"
        )
    if cpus < workers:
        lines.append(
            f"{workers} workers share {cpus} processor{'s' * (cpus != 1)} on this node; request more (srun "
            "--cpus-per-task, slurm.cpus_per_node) or fewer workers"
        )
    return lines


def _count_amd_gpus(root: Path) -> int:
    """Count the nodes with SIMD units that the kernel's driver lists. Nodes of other cgroups cannot be read."""
    count = 0
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        with contextlib.suppress(OSError):
            count += re.search(r"^simd_count [1-9]", properties.read_text(), re.MULTILINE) is not None
    return count


def this_process() -> str:
    """Return ``BOOT:PIDSPACE:PID:START`` of this process. It is unique: no other process ever has the same."""
    return f"{_machine_id()}:{os.getpid()}:{_start_time(os.getpid())}"


def local_pid(process: str) -> int | None:
    """Return the process id of ``process`` (see `this_process`) if it is alive on this machine, else None."""
    return int(process.split(":")[2]) if process_status(process)[1] else None


def _machine_id() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def _start_time(pid: int) -> str | None:
    """Return the start time of a live process in clock ticks since boot (proc(5)); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def process_status(process: str) -> tuple[bool, bool]:
    """Return whether ``process`` (see `this_process`) was started on this machine since its boot, and is alive.

    An empty ``process`` is unknown: it was not started here.
    """
    if not process:
        return False, False
    boot, space, pid, start = (process.split(":") + [""] * 4)[:4]
    if f"{boot}:{space}" != _machine_id():
        return False, False
    return True, _start_time(int(pid)) == start


def _requeued(earlier: Member, identity: NodeIdentity) -> bool:
    """Return whether SLURM has requeued this job since. Before it starts the job again, it ends the old step."""
    job, restart = job_start(earlier.job)
    return bool(job) and job == identity.job and restart < identity.restart


def worker_count(settings: WorkerSettings, environ: Mapping[str, str]) -> int:
    """Return the number of workers of this node. Raises ConfigError if each needs its own GPU and there are too few."""
    gpus = count_gpus(environ)
    count = (gpus or 1) if settings.per_node == "auto" else settings.per_node
    if settings.virtual_local_rank and "CUDA_VISIBLE_DEVICES" in environ and count > gpus:
        visible = environ["CUDA_VISIBLE_DEVICES"]
        raise ConfigError(
            f"workers.virtual_local_rank gives each of {count} workers a GPU of its own, and CUDA_VISIBLE_DEVICES is "
            f"{visible!r}; request as many GPUs, or fewer workers"
        )
    return count
