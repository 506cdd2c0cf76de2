"""The contents of a test cluster's configuration files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROLLER = "ctl"
CONTROLLER_PORT = 6817

SCHEDULING = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"
"""SchedulerParameters that schedule at once."""

# Scheduling is immediate, and a requeued job may start without a wait of two minutes. That wait is the lifetime of a
# credential; values under 5 s are ignored. Authentication is off, because only this machine can reach the cluster.
_SETTINGS = f"""
SlurmctldPort={CONTROLLER_PORT}
SlurmdPort=6818
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters={SCHEDULING}
ReturnToService=1
JobRequeue=1
MessageTimeout=5
TCPTimeout=1
SlurmdTimeout=10
KillWait=5
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


@dataclass(frozen=True)
class Site:
    """Input of a cluster's configuration files. `nodes` maps host names to addresses."""

    name: str
    directory: Path
    controller: str
    gateway: str
    nodes: Mapping[str, str]
    cpus: int
    gpus: tuple[int, ...]  # for each node
    extra_conf: str
    topology: str
    more_files: Mapping[str, str]


def files(site: Site, this_host: str) -> dict[str, str]:
    """Return the text of each file by its name. All files belong into the site's directory."""
    # cgroup/v1 is the only plugin that needs nothing from the machine as long as no other plugin uses cgroups.
    texts = {
        "slurm.conf": slurm_conf(site),
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "hosts": hosts(site, this_host),
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
    }
    if any(site.gpus):
        counts = zip(site.nodes, site.gpus, strict=True)
        lines = (f"NodeName={n} Name=gpu File={gpu_file(site, f'[0-{c - 1}]')}\n" for n, c in counts if c)
        texts["gres.conf"] = "".join(lines)
    if site.topology:
        texts["topology.conf"] = site.topology
    return {**texts, **site.more_files}


def gpu_file(site: Site, index: int | str) -> str:
    return f"{site.directory}/nvidia{index}"


def slurm_conf(site: Site) -> str:
    settings = _merge(_own_settings(site) + _SETTINGS, site.extra_conf)
    # Partitions are last, because SLURM reads them after the nodes that they name.
    last = sorted(settings, key=lambda line: line.startswith("PartitionName="))
    return "\n".join(last) + "\n"


def _own_settings(site: Site) -> str:
    lines = [
        f"ClusterName={site.name}",
        f"SlurmctldHost={CONTROLLER}({site.controller})",
        f"SlurmctldPidFile={site.directory}/slurmctld.pid",
        f"SlurmdPidFile={site.directory}/slurmd.%n.pid",
        f"SlurmdSpoolDir={site.directory}/spool/%n",
        f"StateSaveLocation={site.directory}/state",
        *(["GresTypes=gpu"] if any(site.gpus) else []),
        *(["TopologyPlugin=topology/tree"] if site.topology else []),
        *(["CommunicationParameters=EnableIPv6,DisableIPv4"] if ":" in site.controller else []),
        *(
            f"NodeName={name} NodeAddr={address} CPUs={site.cpus} RealMemory=4000 {_gres(gpus)} State=UNKNOWN"
            for (name, address), gpus in zip(site.nodes.items(), site.gpus, strict=True)
        ),
    ]
    return "\n".join(lines)


def _gres(gpus: int) -> str:
    return f"Gres=gpu:{gpus}" if gpus else ""


def _merge(base: str, extra: str) -> list[str]:
    """Return the lines of both texts. A later line replaces an earlier one of the same key."""
    lines = {_key(line): line for text in (base, extra) for line in map(str.strip, text.splitlines()) if line}
    return list(lines.values())


def _key(line: str) -> str:
    first = line.split(maxsplit=1)[0].lower()
    name, _, _ = first.partition("=")
    return first if name in ("nodename", "partitionname", "downnodes") else name


def hosts(site: Site, this_host: str) -> str:
    names = {this_host: site.gateway, CONTROLLER: site.controller, **site.nodes}
    return "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in names.items())
