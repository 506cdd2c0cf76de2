"""What a job asks too little of SLURM for, as far as its configuration tells. Pure."""

from collections.abc import Iterator

from hpcelastic.config.job import JobConfig


def shortages(config: JobConfig) -> list[str]:
    """A line for each kind of resource of which a node has fewer than workers."""
    return list(_shortages(config))


def _shortages(config: JobConfig) -> Iterator[str]:
    workers, gpus, cpus = config.workers.per_node, _gpus(config.slurm.gpus_per_node), config.slurm.cpus_per_node
    if workers == "auto":
        return
    if gpus is not None and workers > gpus:
        yield (
            f"workers.per_node is {workers}, more than slurm.gpus_per_node, {gpus}: a script that gives each worker "
            "the GPU of its LOCAL_RANK fails; raise the one or lower the other"
        )
    if cpus is not None and workers > cpus:
        yield (
            f"workers.per_node is {workers}, more than slurm.cpus_per_node, {cpus}: workers share processors; raise "
            "the one or lower the other"
        )


def _gpus(asked: int | str | None) -> int | None:
    """How many GPUs ``4``, ``a100:4`` or ``a100:2,v100:2`` asks for; None if it is not known."""
    if asked is None:
        return None
    return sum(int(part.rpartition(":")[2]) for part in str(asked).split(","))
