"""The event of workers that have started, with the processors and GPUs that they may use."""

from hpcelastic.agent.binding import binding, format_ranges
from hpcelastic.agent.launch import Launch
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.protocol.events import WorkersStarted


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
