"""Relocation: an element of a pool that got a bad node starts again on another node.

The element must not just end. SLURM would give the free node to the next pending element, until all elements have
failed on the bad node.
"""

import signal
from collections.abc import Callable, Iterable

from hpcelastic.errors import SlurmError
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask

_MAX_RESTARTS = 3
"""Restarts of an element after which it stays on its node: the node may not be the cause."""


def can_relocate(task: SlurmTask | None) -> bool:
    """Return whether the job of this task can move to another node: an element of an array, not restarted too often."""
    return task is not None and task.array_task is not None and task.restart < _MAX_RESTARTS


def relocate(task: SlurmTask, exclude: Iterable[str], report: Callable[[str], None]) -> None:
    """Requeue the job and exclude nodes from it, besides those that it excludes. The caller then ends at once."""
    # The requeue makes SLURM send SIGTERM to this process, which still has to make the second request.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hosts = ",".join(sorted({*exclude}))
    report(f"job {task.name} starts again on another node than {hosts}, after AuthInfo's cred_expire, by default 120 s")
    try:
        excluded = scheduler.job_info(task.name).excluded  # the second request replaces them
        scheduler.requeue_job(task.name)
        scheduler.exclude_nodes(task.name, f"{excluded},{hosts}" if excluded else hosts)
    except SlurmError as error:
        report(f"{error}; the job ends here")
