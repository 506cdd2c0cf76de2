"""The API for notebooks and scripts: `submit` returns a `Run`, and `sweep` returns `Runs`."""

from typing import TYPE_CHECKING

from hpcelastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpcelastic.api.executors import executor
    from hpcelastic.api.launch import submit
    from hpcelastic.api.run import Run
    from hpcelastic.api.runs import Runs, sweep
    from hpcelastic.api.status import NodeStatus, RunStatus

__all__ = ["NodeStatus", "Run", "RunStatus", "Runs", "executor", "submit", "sweep"]

# Commands that only read a run start faster without them.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "NodeStatus": ".status",
        "Run": ".run",
        "RunStatus": ".status",
        "Runs": ".runs",
        "executor": ".executors",
        "submit": ".launch",
        "sweep": ".runs",
    },
)
