"""The nodes that a job must not get because other runs have recorded that they are faulty."""

from hpcelastic.errors import SlurmError
from hpcelastic.health.memory import recorded_nodes
from hpcelastic.health.settings import HealthSettings
from hpcelastic.slurm import scheduler
from hpcelastic.storage.paths import RunPaths


def recorded_hosts(paths: RunPaths, health: HealthSettings, partition: str | None) -> set[str]:
    """Return the nodes of a partition that are bad by the shared record.

    SLURM is asked only if there are some, because the record may name nodes of other clusters, which ``sbatch``
    refuses. The result is empty if all nodes of the partition are bad, or if SLURM does not answer.
    """
    bad = recorded_nodes(paths, health) if health.exclude else set()
    if not bad:
        return set()
    try:
        nodes = scheduler.node_names(partition)
    except SlurmError:
        return set()
    return set() if nodes <= bad else nodes & bad
