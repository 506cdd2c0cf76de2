"""A disposable SLURM cluster of several nodes on one machine: `with SlurmCluster(nodes=4) as cluster: ...`."""

from tests.cluster.availability import slurm_version, why_unavailable
from tests.cluster.cluster import SlurmCluster
from tests.cluster.errors import ClusterError, ClusterTimeout

__all__ = ["ClusterError", "ClusterTimeout", "SlurmCluster", "slurm_version", "why_unavailable"]
