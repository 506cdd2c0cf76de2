"""The few questions and requests that go to SLURM's own commands; each one is a call that administrators count."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime

from hpcelastic.errors import SlurmError
from hpcelastic.slurm.queue import QueuedJob
from hpcelastic.slurm.warnings import JobInfo

_REQUEUE_LIMIT = ("JobHoldMaxRequeue", "launch_failure_limit_exceeded_requeued_held")
"""Why SLURM holds a job that it has requeued ``MaxBatchRequeue`` times: the reason, and its words for it."""

_TIMEOUT = 30.0
"""Seconds for one command: a busy controller answers late, a dead one after its own time-outs."""


def job_states(job_ids: Iterable[str]) -> dict[str, list[str]]:
    """The states of each job that SLURM still knows (``RUNNING``, ``PENDING`` …), asked in one query.

    An array, known by its base id, has one for each element.
    """
    known: dict[str, list[str]] = {job: [] for job in job_ids}
    if not known:
        return {}
    # Without -j: squeue fails as a whole for one unknown id.
    lines = _call("squeue", "--noheader", "--me", "--array", "--states=all", "--format=%F %T").splitlines()
    for job, _, state in (line.strip().partition(" ") for line in lines):
        if job in known:
            known[job].append(state)
    return {job: states for job, states in known.items() if states}


def job_info(job_id: str) -> JobInfo:
    """How a job stands; an element of an array by ``ARRAY_TASK``, for its own id may mean all. Raises SlurmError."""
    lines = _call("scontrol", "show", "job", "--oneliner", job_id).splitlines()
    fields = dict(word.split("=", 1) for word in lines[0].split() if "=" in word) if lines else {}
    if "JobState" not in fields:
        raise SlurmError(f"scontrol show job {job_id}: says nothing of its state")
    return JobInfo(
        state=fields["JobState"],
        left=_left(fields),
        preempted=_time(fields.get("PreemptTime", "")) is not None,
        requeue=fields.get("Requeue") == "1",
        restarts=int(fields.get("Restarts", "0")),
        held=fields.get("Reason") in _REQUEUE_LIMIT,
    )


def queue() -> list[QueuedJob]:
    """All of our jobs that SLURM has in its queue, elements of arrays singly. Raises SlurmError."""
    # The last may have blanks.
    fields = ("JobID", "ArrayJobID", "ArrayTaskID", "State", "NumNodes", "RestartCnt", "Reason")
    wanted = ",".join(f"{name}:40" for name in fields)
    lines = _call("squeue", "--noheader", "--me", "--array", f"--Format={wanted}").splitlines()
    rows = (line.split(maxsplit=len(fields) - 1) for line in lines)
    return [
        QueuedJob(id, *_of_array(id, array, task), state, int(nodes), int(restarts), reason.strip())
        for id, array, task, state, nodes, restarts, reason in rows
    ]


def _of_array(id: str, array: str, task: str) -> tuple[str, str]:
    return (array, task) if array.isdigit() and task.isdigit() else (id, "")


def draining(hosts: Iterable[str]) -> dict[str, str]:
    """Those of the ``hosts`` that SLURM takes out of service, with its reason. Raises SlurmError."""
    names = ",".join(hosts)
    if not names:
        return {}
    lines = _call("sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T %E").splitlines()
    rows = (line.split(maxsplit=2) for line in lines)
    return {name: "".join(reason) for name, state, *reason in rows if state.startswith("drain")}


def requeue_job(job_id: str) -> None:
    """End a job, or the element ``ARRAY_TASK`` of an array, and let it start again under its id. Raises SlurmError."""
    _call("scontrol", "requeue", job_id)


def forbid_requeue(job_id: str) -> None:
    """Let SLURM not start a job again, whatever ends it. Raises SlurmError."""
    _call("scontrol", "update", f"JobId={job_id}", "Requeue=0")


def end_batch_script(job_id: str) -> None:
    """Send SIGTERM to the batch script of a job, or of the element ``ARRAY_TASK`` of an array, and not to its steps.

    Raises SlurmError.
    """
    _call("scancel", "--batch", "--signal=TERM", job_id)


def release_job(job_id: str) -> None:
    """Let a job that is held start. Raises SlurmError."""
    _call("scontrol", "release", job_id)


def keep_off(job_id: str, hosts: str) -> None:
    """Let a job that waits to start do so on none of the ``hosts``, whatever it was to avoid before."""
    _call("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={hosts}")


def start_now(job_id: str) -> None:
    """Spare a requeued job the wait that SLURM lays on it. Raises SlurmError."""
    _call("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def cancel_jobs(job_ids: Iterable[str]) -> None:
    """Cancel jobs; one that has ended is fine."""
    ids = list(job_ids)
    if ids:
        _call("scancel", "--quiet", *ids)


def _left(fields: Mapping[str, str]) -> float | None:
    """Seconds that a job may still run, by the controller's clock alone; None if it does not say."""
    start, end = (_time(fields.get(name, "")) for name in ("StartTime", "EndTime"))
    ran = _seconds(fields.get("RunTime", ""))
    if start is None or end is None or ran is None:
        return None
    return (end - start).total_seconds() - ran


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # None, Unknown, N/A
        return None


def _seconds(text: str) -> float | None:
    """``D-HH:MM:SS`` in seconds."""
    days, _, clock = text.rpartition("-")
    try:
        hours, minutes, seconds = (int(part) for part in clock.split(":"))
        return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
    except ValueError:
        return None


def _call(*command: str) -> str:
    # A person's SQUEUE_PARTITION would hide jobs from us, SCANCEL_INTERACTIVE would wait for an answer.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_", "SINFO_"))
    }
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]}: not found; is this a node of a SLURM cluster, with SLURM in PATH?") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{command[0]}: no answer in {_TIMEOUT:g} s; is the SLURM controller up (scontrol ping)?"
        ) from None
    if done.returncode != 0:
        said = "; ".join(line.removeprefix(f"{command[0]}: ") for line in done.stderr.splitlines() if line)
        raise SlurmError(f"{' '.join(command)}: {said or f'exit status {done.returncode}'}")
    return done.stdout
