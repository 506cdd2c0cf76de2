"""The checks whether this machine has the programs of the tests, and can run a test cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

_HOSTS = ("ip", "unshare", "nsenter")
_SLURM = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "sinfo", "scancel")
_PROBE = "mount -t proc proc /proc && ip link add b0 type bridge && ip link add v0 type veth peer name v1"


def why_missing(*programs: str, weekly: bool = False) -> str | None:
    """Return None if these programs are installed, else which are not, and the remedy.

    ``weekly`` is for programs that only the weekly tests need.
    """
    missing = [program for program in programs if not shutil.which(program)]
    command = "tests/install_system.sh --weekly" if weekly else "tests/install_system.sh"
    return f"{', '.join(missing)} not found: run {command} as root" if missing else None


@cache
def slurm_version() -> tuple[int, int]:
    """Return the release of the SLURM of this machine, such as (24, 11); (0, 0) if there is none."""
    if not shutil.which("slurmctld"):
        return 0, 0
    printed = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    year, month, *_ = printed.split()[-1].split(".")  # "slurm-wlm 24.11.5"
    return int(year), int(month)


def why_unavailable() -> str | None:
    """Return None if a cluster can start here, else the reason and the remedy."""
    return why_no_hosts(*_SLURM)


@cache
def why_no_hosts(*programs: str, weekly: bool = False) -> str | None:
    """Return None if hosts with these programs can start here, else the reason and the remedy; see `why_missing`."""
    if os.geteuid() != 0:  # first, because only root is sure to have /usr/sbin in PATH
        return "a cluster of hosts needs root (namespaces and network links): run pytest as root"
    if reason := why_missing(*_HOSTS) or why_missing(*programs, weekly=weekly):
        return reason
    namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
    probe = subprocess.run(["unshare", *namespaces, "sh", "-c", _PROBE], capture_output=True, text=True)
    if probe.returncode:
        return f"no rights for namespaces and links ({probe.stderr.strip()}): in a container, run it privileged"
    return None
