"""SLURM as the batch system of an agent. It resolves signals with one query to SLURM for the whole job."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable

from hpcelastic.agent.batch_system import STOP_SIGNALS, USER_SIGNALS, JobNews
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.events import JobEligible
from hpcelastic.protocol.state import Notice
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.queue_watcher import QueueWatcher
from hpcelastic.slurm.signal_resolution import Policy, resolve, resolve_without_answer

_QUERY_DELAY = 2.0
"""Seconds after which the next agent of a job queries SLURM, if the previous agent has not published the answer."""

_MAX_DELAYS = 5
"""Agents query SLURM one after the other up to this node id. All others read the first answer in the register."""


class SlurmBatchSystem:
    """SLURM, for the job of ``task``. ``checkpoint`` ends the round for a checkpoint, and the run continues."""

    repeats_signals = True

    def __init__(
        self, task: SlurmTask, policy: Policy, checkpoint: Callable[[], object], queue_watcher: QueueWatcher
    ) -> None:
        self._task = task
        self._policy = policy
        self._checkpoint = checkpoint
        self._queue_watcher = queue_watcher
        self.observe, self.stop = queue_watcher.observe, queue_watcher.stop
        self.query_delay = _QUERY_DELAY * min(task.node_id, _MAX_DELAYS) if task.nodes > 1 else 0.0

    def start(self, deliver: Callable[[JobNews], None]) -> None:
        """See `hpcelastic.agent.batch_system`. The first node of a job also asks when the job was eligible."""
        self._queue_watcher.start(deliver)
        if self._task.node_id == 0 and not self._task.array_task:
            threading.Thread(target=self._ask_eligible, args=(deliver,), name="eligible time", daemon=True).start()

    def _ask_eligible(self, deliver: Callable[[JobEligible], None]) -> None:
        with contextlib.suppress(SlurmError):
            since = scheduler.job_info(self._task.name).eligible
            if since is not None:
                deliver(JobEligible(since=since))

    def resolve_signal(self, signum: int) -> Notice | None:
        """See `hpcelastic.agent.batch_system`."""
        if signum in STOP_SIGNALS and signum != signal.SIGTERM:
            return Notice(signal.Signals(signum).name, self._policy.stop_grace)  # from a terminal
        user_signal = signum in USER_SIGNALS
        received = time.monotonic() - self.query_delay
        try:
            resolution = resolve(scheduler.job_info(self._task.name), user_signal, self._policy)
        except SlurmError:
            return resolve_without_answer(user_signal, self._policy, time.monotonic() - received)
        if isinstance(resolution, Notice):
            return resolution
        self._checkpoint()
        return None

    def expects_nodes(self) -> bool:
        """See `hpcelastic.agent.batch_system`."""
        try:
            pending_capacity = self._queue_watcher.pending_capacity()
        except (SlurmError, StoreError):
            return False
        return pending_capacity.expected + pending_capacity.pending > 0

    def shortage_notice(self) -> Notice | None:
        """See `hpcelastic.agent.batch_system`. None for a job of one node: such a job does not lack nodes itself."""
        if self._task.nodes == 1 or not self._policy.requeue:
            return None
        return Notice("fewer nodes than nodes.min are left, and no others are expected", 0.0, requeue="shortage")
