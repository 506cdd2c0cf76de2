"""Resolution of signals by an agent under SLURM."""

import queue
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import SlurmError
from hpcelastic.protocol.events import JobEligible
from hpcelastic.protocol.state import Notice
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.batch_system import SlurmBatchSystem
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.queue_watcher import QueueWatcher, WatchedRun
from hpcelastic.slurm.signal_resolution import JobInfo, Policy
from hpcelastic.storage.paths import RunPaths

POLICY = Policy(warning=120.0, stop_grace=30.0, requeue=True, beyond_limit=True)
TASK = SlurmTask("7", "n1", 0, 2, 0)
NEAR_LIMIT = JobInfo("RUNNING", 130.0, preempted=False, requeue=True)
LONG_BEFORE = JobInfo("RUNNING", 86_400.0, preempted=False, requeue=True)
USER_SIGNALS = pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda signum: signum.name)


class Slurm:
    """A fake SLURM that gives the answers of a test. ``checkpoints`` counts the requested checkpoints."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job: JobInfo | None = LONG_BEFORE
        self.checkpoints = self.asked = 0
        self._paths = RunPaths(root)
        self.batch_system = self.system(TASK)
        monkeypatch.setattr(scheduler, "job_info", self._job_info)

    def system(self, task: SlurmTask) -> SlurmBatchSystem:
        watched = WatchedRun(self._paths, FileBackend(self._paths), "n1@0-ab", 60.0, False, 0.0, str)
        return SlurmBatchSystem(task, POLICY, self._checkpoint, QueueWatcher(watched, print))

    def _checkpoint(self) -> None:
        self.checkpoints += 1

    def _job_info(self, job_id: str) -> JobInfo:
        self.asked += 1
        if self.job is None:
            raise SlurmError("no answer")
        return self.job


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("node_id", "element", "asks"), [(0, None, True), (1, None, False), (0, 0, True), (0, 3, False)]
)
def test_one_agent_of_a_job_asks_once_when_the_job_was_eligible(
    slurm: Slurm, node_id: int, element: int | None, asks: bool
) -> None:
    slurm.job = replace(LONG_BEFORE, eligible=1.7e9)
    slurm.batch_system = slurm.system(replace(TASK, node_id=node_id, array_task=element))
    delivered: queue.Queue[object] = queue.Queue()
    slurm.batch_system.start(delivered.put)
    try:
        if asks:
            assert delivered.get(timeout=30.0) == JobEligible(since=1.7e9)
        assert slurm.asked == asks
    finally:
        slurm.batch_system.stop()


@USER_SIGNALS
def test_a_user_signal_near_the_time_limit_is_its_warning(signum: int, slurm: Slurm) -> None:
    slurm.job = NEAR_LIMIT
    assert slurm.batch_system.resolve_signal(signum) == Notice("the time limit is near", 120.0, "limit")
    assert slurm.checkpoints == 0


@USER_SIGNALS
def test_a_user_signal_long_before_the_time_limit_requests_a_checkpoint(signum: int, slurm: Slurm) -> None:
    assert slurm.batch_system.resolve_signal(signum) is None
    assert slurm.checkpoints == 1


@USER_SIGNALS
def test_a_user_signal_is_a_warning_if_slurm_does_not_answer(signum: int, slurm: Slurm) -> None:
    slurm.job = None
    notice = slurm.batch_system.resolve_signal(signum)
    assert notice is not None and (notice.reason, notice.requeue) == ("SLURM warns the job of its end", "limit")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda signum: signum.name)
def test_other_signals_end_the_node(signum: int, slurm: Slurm) -> None:
    assert slurm.batch_system.resolve_signal(signum) == Notice(signal.Signals(signum).name, 30.0)
    assert slurm.checkpoints == 0
