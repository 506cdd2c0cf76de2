"""Parsing of the output of SLURM's commands, recorded on a real cluster."""

import errno
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcelastic.errors import SlurmError
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.queue import QueuedJob
from hpcelastic.slurm.signal_resolution import JobInfo

RUNS = (
    "JobId=4 JobName=sbatch UserId=root(0) GroupId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 ExitCode=0:0 RunTime=00:00:03 TimeLimit=01:00:00 TimeMin=N/A "
    "SubmitTime=2026-11-21T21:54:44 EligibleTime=2026-11-21T21:54:44 AccrueTime=2026-11-21T21:54:44 "
    "StartTime=2026-11-21T21:54:44 EndTime=2026-11-21T22:54:44 Deadline=N/A PreemptEligibleTime=2026-11-21T21:54:44 "
    "PreemptTime=None SuspendTime=None SecsPreSuspend=0 Partition=graceful NodeList=n[1-2] BatchHost=n1 NumNodes=2 "
    "Command=/home/a b/train=1.sh WorkDir=/work StdErr=/tmp/job-4.out Power= \n"
)
PREEMPTED = RUNS.replace("PreemptTime=None", "PreemptTime=2026-11-21T21:54:46").replace("T22:54:44", "T21:54:52")
YEAR = RUNS.replace("TimeLimit=01:00:00", "TimeLimit=365-00:00:00").replace(
    "2026-11-21T22:54:44", "2027-11-21T21:54:44"
)
UNLIMITED = RUNS.replace("TimeLimit=01:00:00", "TimeLimit=UNLIMITED").replace("2026-11-21T22:54:44", "Unknown")
PENDING = (
    RUNS.replace("JobState=RUNNING", "JobState=PENDING")
    .replace("StartTime=2026-11-21T21:54:44", "StartTime=2026-11-21T22:00:00")
    .replace("EndTime=2026-11-21T22:54:44", "EndTime=Unknown")
    .replace("RunTime=00:00:03", "RunTime=00:00:00")
)
REQUEUED = (
    RUNS.replace("JobState=RUNNING", "JobState=COMPLETING")
    .replace("PreemptTime=None ", "")
    .replace("RunTime=00:00:03", "RunTime=00:00:00")
)
HELD = REQUEUED.replace("Restarts=0", "Restarts=6").replace(
    "Reason=None", "Reason=launch_failure_limit_exceeded_requeued_held"
)
TWO = RUNS + RUNS.replace("JobId=4", "JobId=5").replace("RUNNING", "FAILED")


SUSPENDED = RUNS.replace("SuspendTime=None", "SuspendTime=2026-11-21T22:54:47").replace("T22:54:44", "T23:54:44")
ADJUSTED = RUNS.replace("T22:54:44", "T22:54:14")

ELIGIBLE = datetime(2026, 11, 21, 21, 54, 44, tzinfo=timezone.utc).timestamp()
"""SLURM's commands are asked for times in UTC."""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(RUNS, JobInfo("RUNNING", 3597.0, False, True), id="runs"),
        pytest.param(RUNS.replace("Requeue=1", "Requeue=0"), JobInfo("RUNNING", 3597.0, False, False), id="no requeue"),
        pytest.param(PREEMPTED, JobInfo("RUNNING", 5.0, True, True), id="preempted, with grace"),
        pytest.param(YEAR, JobInfo("RUNNING", 365 * 86_400.0 - 3, False, True), id="a limit of a year"),
        pytest.param(UNLIMITED, JobInfo("RUNNING", None, False, True), id="no limit"),
        pytest.param(PENDING, JobInfo("PENDING", 3600.0, False, True), id="pending"),
        pytest.param(REQUEUED, JobInfo("COMPLETING", 3600.0, False, True), id="just requeued"),
        pytest.param(HELD, JobInfo("COMPLETING", 3600.0, False, True, 6, held=True), id="requeued and held"),
        pytest.param(SUSPENDED, JobInfo("RUNNING", 3597.0, False, True), id="resumed after a suspension"),
        pytest.param(
            ADJUSTED, JobInfo("RUNNING", 3567.0, False, True), id="an end within the last minute of the limit"
        ),
        pytest.param(TWO, JobInfo("RUNNING", 3597.0, False, True), id="several jobs"),
    ],
)
def test_the_state_of_a_job(output: str, expected: JobInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_call", lambda *command: output)
    assert scheduler.job_info("4") == replace(expected, eligible=ELIGIBLE, batch_host="n1")


def test_the_times_do_not_depend_on_the_time_zone_or_the_users_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks change within the time limit of this job, and the command prints local times, as scontrol does."""
    start, end = (datetime(2026, 3, day, 11, tzinfo=timezone.utc).timestamp() for day in (28, 30))
    times = " ".join(
        f"{name}=$(date -d @{time:.0f} +$format)" for name, time in (("StartTime", start), ("EndTime", end))
    )
    command = tmp_path / "scontrol"
    command.write_text(
        '#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = standard ] && format=%FT%T || format=%c\n'
        f'echo "JobId=4 JobState=RUNNING RunTime=1-00:00:00 TimeLimit=UNLIMITED {times}"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    assert scheduler.job_info("4").time_left == 86_400


def test_a_job_of_salloc_has_no_batch_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_call", lambda *command: RUNS.replace("BatchFlag=1", "BatchFlag=0"))
    assert scheduler.job_info("4").batch_host == ""


@pytest.mark.parametrize(("answer", "excluded"), [("(null)", ""), ("n[2-3],m1", "n[2-3],m1")])
def test_the_excluded_nodes_of_a_job(answer: str, excluded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scheduler, "_call", lambda *command: RUNS.replace("NodeList=", f"ExcNodeList={answer} NodeList=")
    )
    assert scheduler.job_info("4").excluded == excluded


def test_a_job_that_is_held_has_no_eligible_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held = RUNS.replace("EligibleTime=2026-11-21T21:54:44 ", "EligibleTime=Unknown ", 1)
    monkeypatch.setattr(scheduler, "_call", lambda *command: held)
    assert scheduler.job_info("4").eligible is None


def test_the_final_states_of_jobs_that_only_the_accounting_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*command: str) -> str:
        if command[0] == "squeue":
            return "4 COMPLETED\n9 RUNNING\n"
        assert command[0] == "sacct" and command[-1] == "5,6,7"
        return "5|TIMEOUT\n6_0|CANCELLED by 1000\n6_1|COMPLETED\n"

    monkeypatch.setattr(scheduler, "_call", call)
    found = scheduler.final_states(["4", "5", "6", "7"])
    assert found == {"4": ["COMPLETED"], "5": ["TIMEOUT"], "6": ["CANCELLED", "COMPLETED"]}


@pytest.mark.parametrize(
    ("whose", "squeue", "sacct"), [(0, "--me", False), (1, "--user={}", True)], ids=["own", "others"]
)
def test_the_jobs_of_their_owner_are_asked_for(
    whose: int, squeue: str, sacct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, commands = os.geteuid() + whose, list[tuple[str, ...]]()

    def call(*command: str) -> str:
        commands.append(command)
        return ""

    monkeypatch.setattr(scheduler, "_call", call)
    scheduler.queue(owner)
    scheduler.final_states(["4"], owner)
    first, second, third = commands
    assert squeue.format(owner) in first and squeue.format(owner) in second
    assert third[0] == "sacct" and ("--allusers" in third) == sacct


def test_the_final_states_of_jobs_without_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*command: str) -> str:
        if command[0] == "squeue":
            return "4 TIMEOUT\n"
        raise SlurmError("sacct: Slurm accounting storage is disabled")

    monkeypatch.setattr(scheduler, "_call", call)
    assert scheduler.final_states(["4", "5"]) == {"4": ["TIMEOUT"]}


def test_a_command_that_cannot_be_started_is_an_error_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(scheduler.subprocess, "run", run)
    with pytest.raises(SlurmError, match=r"^scontrol: cannot be started: Resource temporarily unavailable$"):
        scheduler.job_info("4")


def test_the_state_of_a_job_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_bytes(RUNS.replace("JobName=sbatch", "JobName=m\xfcde").encode("latin-1"))
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nexec cat {tmp_path}/answer\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert scheduler.job_info("4").running


@pytest.mark.parametrize("output", ["", "\n", "No jobs in the system\n"])
def test_output_without_the_job_is_an_error(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_call", lambda *command: output)
    with pytest.raises(SlurmError, match="scontrol show job 4"):
        scheduler.job_info("4")


@pytest.mark.parametrize(
    ("ran", "left"),
    [("00:00:59", 3541.0), ("01:00:00", 0.0), ("1-00:00:00", 3600.0 - 86_400), ("INVALID", None), ("", None)],
)
def test_the_remaining_time_of_a_job(ran: str, left: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_call", lambda *command: RUNS.replace("RunTime=00:00:03", f"RunTime={ran}"))
    assert scheduler.job_info("4").time_left == left


def test_lines_of_squeue_that_are_no_jobs_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    output = (
        "The cluster is down on Monday from 8 to 12.\n\n"
        "12    12    N/A   RUNNING   2     0     None\n"
        "14    13    1     PENDING   1     1     (Nodes required for job are DOWN)\n"
        "15    15    N/A   PENDING   few   0     Priority\n"
        "16    16    N/A   PENDING   1     0\n"
    )
    monkeypatch.setattr(scheduler, "_call", lambda *command: output)
    assert scheduler.queue() == [
        QueuedJob("12", "12", "", "RUNNING", 2, 0, "None"),
        QueuedJob("14", "13", "1", "PENDING", 1, 1, "(Nodes required for job are DOWN)"),
    ]


def test_lines_of_sinfo_that_are_no_nodes_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    output = "\nsite\nn1 drained bad fan\nn2 idle none\nn3 draining\n"
    monkeypatch.setattr(scheduler, "_call", lambda *command: output)
    assert scheduler.draining(["n1", "n2", "n3"]) == {"n1": "bad fan", "n3": ""}
