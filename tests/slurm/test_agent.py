"""`hpcelastic agent` in a line of a job script, with the flags for its job, on a real cluster."""

import pytest

from tests.slurm.test_templates import ENDED, Desk, busy_desk, desk

pytestmark = pytest.mark.slow

__all__ = ["busy_desk", "desk"]

AGENT = "hpcelastic agent --rdzv-endpoint ./runs"
OVER = ("FAILED", "PREEMPTED")
"""SLURM's states of a preempted job that is not requeued: up to 24.04, and since 24.05."""

PREEMPTED = {
    "no flag": ("", ("PENDING",), "requeueing job {job}: SLURM preempts the job"),
    "no requeue": ("--no-requeue", OVER, "SLURM preempts the job"),
    "at most 0 requeues": (
        "--max-requeues=0",
        OVER,
        "not requeued: the job was requeued 0 times (slurm.max_requeues is 0)",
    ),
}


@pytest.mark.parametrize(("start", "reported"), [("", True), ("srun --ntasks=1 ", False)], ids=["batch script", "step"])
def test_an_agent_without_srun_reports_missing_functions(start: str, reported: bool, desk: Desk) -> None:
    (desk.path / "job").write_text(f"#!/bin/bash\n{start}{AGENT} --tee both quick.py\n")
    job = desk.sbatch("--output=%x-%j.log", "job")
    desk.cluster.wait_job(job, "COMPLETED", timeout=ENDED)
    assert "0 of 1" in desk.log(job)
    assert ("no warning before a preemption" in desk.log(job)) is reported
    assert desk.log(job).count("srun --ntasks=1 hpcelastic agent") == reported


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "states", "words"), PREEMPTED.values(), ids=PREEMPTED)
def test_the_flags_determine_whether_a_preempted_job_is_requeued(
    flag: str, states: tuple[str, ...], words: str, busy_desk: Desk
) -> None:
    desk = busy_desk
    (desk.path / "job").write_text(f"#!/bin/bash\nsrun {AGENT} --tee both {flag} saving.py\n")
    job = desk.sbatch("--partition=graceful", "--requeue", "--nodelist=n1", "--output=%x-%j.log", "job")
    desk.until_trained(job, 1, "0")
    desk.cluster.submit("sleep 1000", "--partition=high", "--exclusive", "--nodelist=n1")
    desk.cluster.wait_job(job, states, timeout=ENDED)
    assert words.format(job=job) in desk.log(job)
