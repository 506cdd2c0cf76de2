"""All queries and requests to SLURM, made by its commands. Administrators count such calls, so there are few."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

from hpcelastic.errors import SlurmError
from hpcelastic.slurm.partitions import FORMAT, Partition, parse_partitions
from hpcelastic.slurm.queue import QueuedJob
from hpcelastic.slurm.signal_resolution import JobInfo

_REQUEUE_LIMIT = ("JobHoldMaxRequeue", "launch_failure_limit_exceeded_requeued_held")
"""Reasons, as a code and as a text, with which SLURM holds a job that it has requeued ``MaxBatchRequeue`` times."""

ENDED_STATES = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    *("PREEMPTED", "REVOKED"),  # a job that is requeued after a preemption is PENDING
}
"""States of jobs that have ended. Source: squeue(1), JOB STATE CODES."""

_QUEUE_FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "State", "NumNodes", "RestartCnt", "Reason")
"""Fields of squeue. The last one may contain blanks."""

_TIMEOUT = 30.0
"""Seconds for one command. A busy controller answers late; for a dead one, a command waits for its own time-outs."""


def job_states(job_ids: Iterable[str], owner: int | None = None) -> dict[str, list[str]]:
    """Return the states (``RUNNING``, ``PENDING`` …) of each job that SLURM still knows, by one query.

    The jobs are those of the user with the number ``owner``, by default of this user. An array is named by its base id
    and has one state for each element.
    """
    known: dict[str, list[str]] = {job: [] for job in job_ids}
    if not known:
        return {}
    # Without -j: squeue fails for all ids if one is unknown.
    lines = _call("squeue", "--noheader", _whose(owner), "--array", "--states=all", "--format=%F %T").splitlines()
    for job, _, state in (line.strip().partition(" ") for line in lines):
        if job in known:
            known[job].append(state)
    return {job: states for job, states in known.items() if states}


def _whose(owner: int | None) -> str:
    """Return the option of squeue for the jobs of a user, by default of this user."""
    return "--me" if owner in (None, os.geteuid()) else f"--user={owner}"


def final_states(job_ids: Iterable[str], owner: int | None = None) -> dict[str, list[str]]:
    """Return the states of jobs as `job_states` does, also of jobs that only the accounting still knows.

    A cluster may have no accounting.
    """
    ids = list(job_ids)
    known = job_states(ids, owner)
    missing = [job for job in ids if job not in known]
    if missing:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
        command += [] if owner in (None, os.geteuid()) else ["--allusers"]
        with contextlib.suppress(SlurmError):
            for line in _call(*command, "--jobs", ",".join(missing)).splitlines():
                job, _, state = line.partition("|")
                # "12_3|CANCELLED by 1000"
                known.setdefault(job.partition("_")[0], []).append(state.partition(" ")[0])
    return known


def job_info(job_id: str) -> JobInfo:
    """Return the information about a job. Raises SlurmError.

    Name an element of an array ``ARRAY_TASK``, because its own id may mean the whole array.
    """
    lines = _call("scontrol", "show", "job", "--oneliner", job_id).splitlines()
    fields = dict(word.split("=", 1) for word in lines[0].split() if "=" in word) if lines else {}
    if "JobState" not in fields:
        raise SlurmError(f"scontrol show job {job_id}: the answer contains no JobState")
    return JobInfo(
        state=fields["JobState"],
        time_left=_time_left(fields),
        preempted=_parse_time(fields.get("PreemptTime", "")) is not None,
        requeue=fields.get("Requeue") == "1",
        restarts=int(fields.get("Restarts", "0")),
        held=fields.get("Reason") in _REQUEUE_LIMIT,
        eligible=eligible.timestamp() if (eligible := _parse_time(fields.get("EligibleTime", ""))) else None,
        excluded=excluded if (excluded := fields.get("ExcNodeList", "")) != "(null)" else "",
        batch_host=fields.get("BatchHost", "") if fields.get("BatchFlag", "0") != "0" else "",
    )


def queue(owner: int | None = None) -> list[QueuedJob]:
    """Return all jobs of a user in SLURM's queue, with the elements of arrays as single jobs. Raises SlurmError.

    The user is that with the number ``owner``, by default this user.
    """
    wanted = ",".join(f"{name}:40" for name in _QUEUE_FIELDS)
    lines = _call("squeue", "--noheader", _whose(owner), "--array", f"--Format={wanted}").splitlines()
    return [job for job in map(_queued_job, lines) if job is not None]


def _queued_job(line: str) -> QueuedJob | None:
    """Return the job of a line of squeue; None if the line is something else, such as a message of the site."""
    try:
        id, array, task, state, nodes, restarts, reason = line.split(maxsplit=len(_QUEUE_FIELDS) - 1)
        return QueuedJob(id, *_of_array(id, array, task), state, int(nodes), int(restarts), reason.strip())
    except ValueError:
        return None


def _of_array(id: str, array: str, task: str) -> tuple[str, str]:
    return (array, task) if array.isdigit() and task.isdigit() else (id, "")


def draining(hosts: Iterable[str]) -> dict[str, str]:
    """Return those of the ``hosts`` that SLURM drains, with its reasons. Raises SlurmError."""
    names = ",".join(hosts)
    if not names:
        return {}
    lines = _call("sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T %E").splitlines()
    rows = (line.split(maxsplit=2) for line in lines)
    return {row[0]: "".join(row[2:]) for row in rows if len(row) > 1 and row[1].startswith("drain")}


def node_names(partition: str | None = None) -> set[str]:
    """Return the names of all nodes, or of those of a partition. Raises SlurmError."""
    options = [f"--partition={partition}"] if partition else []
    return set(_call("sinfo", "--noheader", "--Node", "--format=%N", *options).split())


def partitions() -> list[Partition]:
    """Return the partitions that accept jobs, in SLURM's order. Raises SlurmError."""
    return parse_partitions(_call("sinfo", "--noheader", f"--format={FORMAT}").splitlines())


def requeue_job(job_id: str) -> None:
    """End a job, or the element ``ARRAY_TASK`` of an array, and start it again with its id. Raises SlurmError."""
    _call("scontrol", "requeue", job_id)


def forbid_requeue(job_id: str) -> None:
    """Forbid SLURM to start a job again after any end. Raises SlurmError."""
    _call("scontrol", "update", f"JobId={job_id}", "Requeue=0")


def end_batch_script(job_id: str) -> None:
    """Send SIGTERM to the batch script of a job, or of the element ``ARRAY_TASK`` of an array, and not to its steps.

    Raises SlurmError.
    """
    _call("scancel", "--batch", "--signal=TERM", job_id)


def release_job(job_id: str) -> None:
    """Release a held job. Raises SlurmError."""
    _call("scontrol", "release", job_id)


def exclude_nodes(job_id: str, hosts: str) -> None:
    """Replace the excluded nodes of a pending job by ``hosts``. Raises SlurmError."""
    _call("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={hosts}")


def start_now(job_id: str) -> None:
    """Cancel the delay that SLURM sets for a requeued job. Raises SlurmError."""
    _call("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def cancel_jobs(job_ids: Iterable[str]) -> None:
    """Cancel jobs. A job that has ended is no error. Raises SlurmError."""
    ids = list(job_ids)
    if ids:
        _call("scancel", "--quiet", *ids)


def _time_left(fields: Mapping[str, str]) -> float | None:
    """Return the seconds that a job may still run; None if unknown.

    EndTime is earlier than the time limit after a preemption, or if an administrator has set it. It is later than the
    time limit after a suspension, which RunTime does not contain. scontrol computes RunTime by the clock of this node.
    """
    start, end = (_parse_time(fields.get(name, "")) for name in ("StartTime", "EndTime"))
    limit, ran = (_parse_duration(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
    allotted = [] if limit is None else [limit]
    if start is not None and end is not None:
        allotted.append((end - start).total_seconds())
    return min(allotted) - ran if allotted and ran is not None else None


def _parse_time(text: str) -> datetime | None:
    """Return the time ``text`` of SLURM, whose commands print UTC for us; None if it is something else."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    except ValueError:  # None, Unknown, N/A
        return None


def _parse_duration(text: str) -> float | None:
    """Return ``D-HH:MM:SS`` in seconds; None if ``text`` is something else."""
    days, _, clock = text.rpartition("-")
    try:
        hours, minutes, seconds = (int(part) for part in clock.split(":"))
        return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
    except ValueError:
        return None


def _call(*command: str) -> str:
    # The user's SQUEUE_PARTITION would hide jobs from us, and SCANCEL_INTERACTIVE would wait for an answer.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_", "SINFO_"))
    }
    # Differences of local times are wrong where the clocks change, and the user may have chosen another format.
    environ |= {"TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # the name of a job may be in any encoding
            timeout=_TIMEOUT,
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]}: not found; is this a node of a SLURM cluster, with SLURM in PATH?") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{command[0]}: no answer in {_TIMEOUT:g} s; is the SLURM controller up (scontrol ping)?"
        ) from None
    except OSError as error:  # for example, the limit of processes is reached
        raise SlurmError(f"{command[0]}: cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        message = "; ".join(line.removeprefix(f"{command[0]}: ") for line in done.stderr.splitlines() if line)
        raise SlurmError(f"{' '.join(command)}: {message or f'exit status {done.returncode}'}")
    return done.stdout
