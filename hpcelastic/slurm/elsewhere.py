"""An element of a pool that got a bad node starts again on another.

It must not just end: SLURM would give the node, which is free again, to the next element that waits, until the bad node
has had them all.
"""

import signal
from collections.abc import Callable, Iterable

from hpcelastic.errors import SlurmError
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask

_STARTS = 3
"""So often an element is started again at most before it puts up with its node: perhaps it is not the node."""


def may_start_elsewhere(task: SlurmTask | None) -> bool:
    """Whether the job of this task can leave its node alone."""
    return task is not None and task.array_task is not None and task.restart < _STARTS


def start_elsewhere(task: SlurmTask, exclude: Iterable[str], report: Callable[[str], None]) -> None:
    """Requeue the job, and keep it off nodes; the caller ends at once."""
    # SLURM ends all processes of the job now, and not before it has heard the second wish.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hosts = ",".join(sorted({*exclude}))
    report(f"job {task.name} starts again on another node than {hosts}, after AuthInfo's cred_expire, 120 s")
    try:
        scheduler.requeue_job(task.name)
        scheduler.keep_off(task.name, hosts)
    except SlurmError as error:
        report(f"{error}; the job ends here")
