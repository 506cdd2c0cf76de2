"""What a node is: its name, its address, its place in the job, and which of its earlier incarnations are dead."""

import contextlib
import itertools
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.address import own_address
from hpcelastic.agent.guard import kill_marked
from hpcelastic.errors import NameTaken
from hpcelastic.protocol.state import Member, Stand
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths, safe_name


@dataclass(frozen=True)
class Place:
    """Where an agent runs, as its surroundings tell."""

    name: str
    """Name of the node, unique in the run."""

    job: str = ""
    """What started the agent and its companions; empty if unknown."""

    job_nodes: int = 0
    """Nodes that ``job`` has; 0 if unknown."""

    restart: int = 0
    """How often the job was requeued."""

    order: int = 0
    """Place of the node in the job."""

    address: str = ""
    """Address at which other nodes reach this one; found out if empty."""

    launcher: str = ""
    """Address of the node that started the agent; empty if unknown."""

    topology: str = ""
    """The switches above the node, ``TOP.LEAF``, or its block; empty if unknown."""

    host: str = ""
    """SLURM's name of the node, where ``name`` is another; empty where it is not."""


def new_member(place: Place, local_world_size: int, dead: tuple[str, ...], role: str = "") -> Member:
    """A new incarnation of the node at ``place``, in no round yet; ``role`` is empty for the default one."""
    return Member(
        node=f"{safe_name(place.name)}@{place.restart}-{secrets.token_hex(4)}",
        stand=Stand.READY,
        round=-1,
        local_world_size=local_world_size,
        address=place.address or own_address(launcher=place.launcher),
        port=0,
        order=place.order,
        job=f"{place.job}.{place.restart}" if place.job else "",
        job_nodes=place.job_nodes,
        host=place.host,
        topology=place.topology,
        role=role,
        process=this_process(),
        dead=dead,
    )


def dead_predecessors(paths: RunPaths, place: Place) -> tuple[str, ...]:
    """Earlier incarnations of this node that can have no process left, so that nobody waits for their leases.

    NameTaken if one is still alive on this machine: two agents would fight for the same GPUs.
    """
    dead = []
    for lease in backend_of(paths).leases(of=safe_name(place.name)).values():
        same_machine, alive = look_for(lease.member.process)
        if alive and lease.member.stand is not Stand.LEFT:
            raise already_here(place.name, int(lease.member.process.split(":")[2]))
        if same_machine:
            kill_marked(lease.member.node)  # its guard may be at it still, or have died with it
        if same_machine or _requeued(lease.member, place):
            dead.append(lease.member.node)
    return tuple(dead)


def already_here(name: str, pid: int) -> NameTaken:
    """That process ``pid`` of this machine, 0 if it can't be seen from here, takes part as node ``name``."""
    return NameTaken(
        f"node {name} is in this run already, as process {pid or 'of another container'} on this machine; "
        "stop that agent, or give this one another name with --node-name"
    )


def count_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """GPUs of NVIDIA or AMD that this process was given: by the environment, else those of the machine at ``root``."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            gpus = (gpu.strip() for gpu in environ[name].split(","))
            valid = itertools.takewhile(lambda gpu: gpu not in ("", "-1", "NoDevFiles"), gpus)
            return len(list(valid))  # CUDA ignores what follows an invalid entry
    return sum(1 for _ in (root / "dev").glob("nvidia[0-9]*")) or _count_amd(root)


def overcommitment(workers: int, gpus: int, cpus: int) -> list[str]:
    """A line for each kind of resource of which this node has fewer than ``workers``; of no GPUs at all, none."""
    lines = []
    if 0 < gpus < workers:
        lines.append(
            f"{workers} workers and {gpus} GPU{'s' * (gpus != 1)} on this node: a script that gives each worker the "
            "GPU of its LOCAL_RANK fails; ask for more GPUs, or for fewer workers"
        )
    if cpus < workers:
        lines.append(
            f"{workers} workers share {cpus} processor{'s' * (cpus != 1)} on this node; ask for more (srun "
            "--cpus-per-task, slurm.cpus_per_node), or for fewer workers"
        )
    return lines


def _count_amd(root: Path) -> int:
    """Nodes with SIMD units that the kernel's driver shows; those of others' cgroups can't be read."""
    count = 0
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        with contextlib.suppress(OSError):
            count += re.search(r"^simd_count [1-9]", properties.read_text(), re.MULTILINE) is not None
    return count


def this_process() -> str:
    """``BOOT:PIDSPACE:PID:START`` of this process; no other process ever has the same."""
    return f"{_machine()}:{os.getpid()}:{_start_of(os.getpid())}"


def pid_here(process: str) -> int | None:
    """The id of ``process`` (see `this_process`) if it lives on this machine; None otherwise."""
    return int(process.split(":")[2]) if look_for(process)[1] else None


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def _start_of(pid: int) -> str | None:
    """Start time of a live process in clock ticks since boot (proc(5)); None if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def look_for(process: str) -> tuple[bool, bool]:
    """Whether ``process`` (see `this_process`) belongs to this machine as it is booted now, and whether it lives."""
    boot, space, pid, start = (process.split(":") + [""] * 4)[:4]
    if f"{boot}:{space}" != _machine():
        return False, False
    return True, _start_of(int(pid)) == start


def _requeued(earlier: Member, place: Place) -> bool:
    """True if SLURM has started this job on this node again since: it ends the old step first."""
    job, _, restart = earlier.job.rpartition(".")
    return bool(job) and job == place.job and int(restart) < place.restart
