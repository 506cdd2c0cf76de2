"""A throw-away multi-node SLURM cluster on one machine, for tests: `with SlurmCluster(nodes=4) as cluster: ...`."""

from tests.cluster.availability import why_unavailable
from tests.cluster.cluster import SlurmCluster
from tests.cluster.errors import ClusterError, ClusterTimeout

__all__ = ["ClusterError", "ClusterTimeout", "SlurmCluster", "why_unavailable"]
