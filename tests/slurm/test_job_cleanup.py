"""The end of a job whose run is over."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State
from hpcelastic.slurm import job_cleanup, scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.job_cleanup import JobCleanup
from hpcelastic.slurm.signal_resolution import JobInfo
from hpcelastic.storage import files
from hpcelastic.storage.leases import Lease, OwnLease
from hpcelastic.storage.paths import RunPaths

JOB = JobInfo("RUNNING", None, preempted=False, requeue=True, batch_host="n0")


def agent(node: int, node_state: NodeState) -> Member:
    return Member(f"n{node}@0-a", node_state, 2, 1, "127.0.0.1", 1, order=node, job="7.0", job_nodes=3)


@dataclass
class Ended:
    """A run on the nodes 1 and 2 of a job of three nodes, which has succeeded. Node 0 takes no part in it."""

    paths: RunPaths
    meanwhile: Callable[[], object] = lambda: None
    """Is called while the last survivor waits."""

    cancelled: list[str] = field(default_factory=list)
    leases: dict[int, OwnLease] = field(default_factory=dict)

    def __post_init__(self) -> None:
        backend = FileBackend(self.paths)
        for directory in (self.paths.register, self.paths.leases):
            files.make_directory(directory)
        for node, node_state in enumerate((NodeState.READY, NodeState.LEFT, NodeState.LEFT)):
            self.leases[node] = backend.lease(agent(node, node_state).node)
            self.leases[node].renew(agent(node, node_state))
        participants = tuple(Participant(agent(node, NodeState.LEFT).node, 1, "127.0.0.1", 1) for node in (1, 2))
        state = State("r", Settings(NodeRange(2, 2, spares=1)), Phase.SUCCEEDED, 2, participants=participants)
        backend.register("w").commit(0, encode(state))

    def cleanup(self) -> JobCleanup:
        task = SlurmTask("7", "n2", 2, 3, 0)
        return JobCleanup(self.paths, FileBackend(self.paths), task, agent(2, NodeState.LEFT), RendezvousSettings())


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    ended = Ended(RunPaths(tmp_path))
    monkeypatch.setattr(job_cleanup.time, "sleep", lambda seconds: ended.meanwhile())
    monkeypatch.setattr(scheduler, "job_info", lambda job: JOB)
    monkeypatch.setattr(scheduler, "cancel_jobs", ended.cancelled.extend)
    return ended


def end(ended: Ended) -> None:
    ended.cleanup().run()


def wait_in_vain(ended: Ended) -> None:
    ended.cleanup().end_abandoned_job()


both_ends = pytest.mark.parametrize("act", [end, wait_in_vain], ids=["the run has ended", "no round was formed"])


@both_ends
def test_a_job_that_has_lost_the_node_of_its_batch_script_is_cancelled(
    act: Callable[[Ended], None], ended: Ended
) -> None:
    act(ended)
    assert ended.cancelled == ["7"]


@both_ends
def test_an_agent_does_not_wait_for_a_filesystem_that_hangs(
    act: Callable[[Ended], None], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def hang(*_: object, **__: object) -> dict[str, Lease]:
        assert goes_on.wait(20), "the caller waits"
        return {}

    monkeypatch.setattr(FileBackend, "leases", hang)
    monkeypatch.setattr(job_cleanup, "_TIMEOUT", 0.01)
    with contextlib.suppress(StoreError):
        act(ended)
    goes_on.set()
    assert ended.cancelled == []


@both_ends
@pytest.mark.parametrize("node_state", [NodeState.READY, NodeState.LEFT], ids=["alive", "leaving"])
def test_a_job_whose_first_node_was_a_standby_is_not_cancelled(
    node_state: NodeState, act: Callable[[Ended], None], ended: Ended
) -> None:
    ended.meanwhile = lambda: ended.leases[0].renew(agent(0, node_state))
    act(ended)
    assert ended.cancelled == []


@both_ends
@pytest.mark.parametrize("batch_host", ["", "n9"], ids=["salloc", "the step excludes it"])
def test_a_job_whose_batch_script_runs_elsewhere_is_not_cancelled(
    batch_host: str, act: Callable[[Ended], None], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "job_info", lambda job: replace(JOB, batch_host=batch_host))
    act(ended)
    assert ended.cancelled == []


def test_without_an_answer_of_slurm_the_job_is_left_to_the_user(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job_info(job: str) -> JobInfo:
        raise SlurmError("scontrol: not found")

    monkeypatch.setattr(scheduler, "job_info", job_info)
    ended.cleanup().run()
    assert ended.cancelled == []
    assert "scontrol: not found" in (output := capsys.readouterr().err)
    assert output.endswith("cancel the job yourself: scancel 7\n")
