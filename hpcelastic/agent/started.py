"""The events of an agent and of workers that have started, with what they were given."""

import os
import stat

from hpcelastic.agent.binding import binding, format_ranges
from hpcelastic.agent.launch import Launch
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.protocol.events import AgentStarted, WorkersStarted
from hpcelastic.protocol.state import Member
from hpcelastic.version import __version__


def agent_started(member: Member, workers: int | None, job_start: float | None) -> AgentStarted:
    """Return the event for this process, which is the agent of ``member`` from now on."""
    return AgentStarted(
        address=member.address,
        pid=os.getpid(),
        workers=workers,
        launched=_launched(member.process),
        machine=member.machine,
        job=member.job or None,
        job_nodes=member.job_nodes or None,
        job_start=job_start,
        output=_output_file(),
        version=__version__,
    )


def _launched(process: str) -> float | None:
    """Return the time at which the process was created, in seconds since the node's start; see `this_process`."""
    ticks = process.rpartition(":")[2]
    return int(ticks) / os.sysconf("SC_CLK_TCK") if ticks.isdigit() else None


def _output_file() -> str | None:
    """Return the file that has the standard error of this process."""
    try:
        return os.readlink("/proc/self/fd/2") if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:
        return None


def workers_started(group: WorkerGroup, launch: Launch) -> WorkersStarted:
    """Return the event for a group of which all workers have started."""
    part, processors = group.part, launch.resources.processors
    inherited = binding(launch.environ)
    return WorkersStarted(
        round=part.round,
        world_size=part.world_size,
        group_rank=part.group_rank,
        group_world_size=part.group_world_size,
        role_rank=part.role_first_rank,
        role_world_size=part.role_world_size,
        pids=dict(group.pids),
        cpus=inherited["cpus"],
        gpus=inherited.get("gpus"),
        bound=";".join(format_ranges(cpus) for cpus in processors) if any(processors) else None,
        master_addr=part.master_addr,
        master_port=part.master_port,
        resumed=tuple(sorted(group.resumed)) or None,
    )
