"""Grid Engine as the batch system of an agent.

The batch script sends SIGUSR2 to each agent some time before the job's limit. Grid Engine's own warnings (``-notify``,
``s_rt``) reach only some nodes of a job. The next task of an array job continues the run.
"""

import os
import signal

from hpcelastic.agent.batch_system import NoBatchSystem
from hpcelastic.gridengine.environment import grid_engine_task
from hpcelastic.protocol.state import Notice


class GridEngineBatchSystem(NoBatchSystem):
    """Grid Engine, for one job. Workers have ``warning`` seconds to stop before the time limit."""

    def __init__(self, job: str, grace: float, warning: float) -> None:
        super().__init__(grace)
        self._job, self._warning = job, warning

    def resolve_signal(self, signum: int) -> Notice | None:
        """See `hpcelastic.agent.batch_system`."""
        if signum != signal.SIGUSR2:
            return super().resolve_signal(signum)
        return Notice(f"Grid Engine's job {self._job} is near its time limit", self._warning)


def grid_engine_of(grace: float, warning: float) -> GridEngineBatchSystem | None:
    """Return Grid Engine if it has started this process; else None. See `GridEngineBatchSystem`."""
    task = grid_engine_task(os.environ)
    return None if task is None else GridEngineBatchSystem(task.job, grace, warning)
