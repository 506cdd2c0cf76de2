"""Resources of which a job requests too little, as far as its configuration shows. Pure."""

from collections.abc import Iterator

from hpcelastic.config.job import JobConfig


def shortages(config: JobConfig) -> list[str]:
    """Return a line for each kind of resource of which a node has fewer units than workers."""
    return list(_shortages(config))


def _shortages(config: JobConfig) -> Iterator[str]:
    workers, gpus, cpus = config.workers.per_node, _gpus(config.slurm.gpus_per_node), config.slurm.cpus_per_node
    if workers == "auto":
        return
    if gpus is not None and workers > gpus:
        yield (
            f"workers.per_node is {workers}, more than slurm.gpus_per_node, {gpus}: a script that uses the GPU number "
            "LOCAL_RANK in each worker fails; raise slurm.gpus_per_node or lower workers.per_node"
        )
    if cpus is not None and workers > cpus:
        yield (
            f"workers.per_node is {workers}, more than slurm.cpus_per_node, {cpus}: workers share CPUs; raise "
            "slurm.cpus_per_node or lower workers.per_node"
        )


def _gpus(asked: int | str | None) -> int | None:
    """Return the number of GPUs in ``4``, ``a100:4`` or ``a100:2,v100:2``; None if it is not set."""
    if asked is None:
        return None
    return sum(int(part.rpartition(":")[2]) for part in str(asked).split(","))
