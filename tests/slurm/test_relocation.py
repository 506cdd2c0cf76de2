"""An element of a pool that starts again on another node."""

import signal
from collections.abc import Iterator

import pytest

from hpcelastic.errors import SlurmError
from hpcelastic.slurm import relocation, scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.signal_resolution import JobInfo

TASK = SlurmTask("9", "n1", 0, 1, 0, array_job="7", array_task=2)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    made: list[tuple[str, ...]] = []
    monkeypatch.setattr(scheduler, "requeue_job", lambda job: made.append(("requeue", job)))
    monkeypatch.setattr(scheduler, "exclude_nodes", lambda job, hosts: made.append(("exclude", job, hosts)))
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("excluded", "expected"), [("", "n1,n5"), ("n[2-3]", "n[2-3],n1,n5")], ids=["none", "some"])
def test_the_nodes_that_a_job_excludes_already_stay_excluded(
    excluded: str, expected: str, requests: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobInfo("RUNNING", None, preempted=False, requeue=True, excluded=excluded)
    monkeypatch.setattr(scheduler, "job_info", lambda name: job)
    relocation.relocate(TASK, ["n5", "n1"], lambda line: None)
    assert requests == [("requeue", "7_2"), ("exclude", "7_2", expected)]


def test_without_an_answer_of_slurm_the_job_ends(
    requests: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def job_info(name: str) -> JobInfo:
        raise SlurmError("no answer")

    monkeypatch.setattr(scheduler, "job_info", job_info)
    reports: list[str] = []
    relocation.relocate(TASK, ["n1"], reports.append)
    assert requests == []
    assert reports[-1] == "no answer; the job ends here"
