"""The few questions and requests that go to SLURM's own commands; each one is a call that administrators count."""

import os
import subprocess
from collections.abc import Iterable

from hpcelastic.errors import SlurmError

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


def cancel_jobs(job_ids: Iterable[str]) -> None:
    """Cancel jobs; one that has ended is fine."""
    ids = list(job_ids)
    if ids:
        _call("scancel", "--quiet", *ids)


def _call(*command: str) -> str:
    # A person's SQUEUE_PARTITION would hide jobs from us, SCANCEL_INTERACTIVE would wait for an answer.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_"))}
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
