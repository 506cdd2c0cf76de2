"""What notebooks and scripts use: `submit` a job, hold it as a `Run`."""

from hpcelastic.api.launch import submit
from hpcelastic.api.run import Run
from hpcelastic.api.status import NodeStatus, RunStatus

__all__ = ["NodeStatus", "Run", "RunStatus", "submit"]
