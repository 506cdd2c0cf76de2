"""The API for notebooks and scripts: `submit` returns a `Run`, and `sweep` returns `Runs`."""

from hpcelastic.api.executors import executor
from hpcelastic.api.launch import submit
from hpcelastic.api.run import Run
from hpcelastic.api.runs import Runs, sweep
from hpcelastic.api.status import NodeStatus, RunStatus

__all__ = ["NodeStatus", "Run", "RunStatus", "Runs", "executor", "submit", "sweep"]
