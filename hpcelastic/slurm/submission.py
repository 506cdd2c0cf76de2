"""From a configuration to a SLURM job, by submitit: one agent on each node.

The flags that keep the survivors alive when a node dies are set here: ``--no-kill`` for the job and for its step, and
for the step ``--kill-on-bad-exit=0`` and ``--wait=0``, or srun would end the others after the first task. Three traps
are avoided: a job with ``--ntasks-per-node`` and a range of nodes gets the fewest nodes instead of the most (seen with
SLURM 22.05), so the step alone has that flag; a step does not inherit ``--cpus-per-task`` since 22.05, so it is
repeated; and ``--time=0`` asks for no limit, which a partition with a limit never grants, so it is never a default.
"""

import contextlib
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from hpcelastic.config import JobConfig, SlurmSettings
from hpcelastic.errors import SlurmError
from hpcelastic.slurm.entry import run_agent
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

_STEP = ("--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0")

_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
_OF_A_PERSON = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


class AgentExecutor(submitit.SlurmExecutor):
    """submitit's SLURM executor, for use from anywhere: a machine without SLURM, or a notebook within another job."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # The new job would inherit what describes ours: with its SLURM_NTASKS=1, srun starts one agent for all nodes.
        ours = [name for name in os.environ if name.startswith(_OF_A_JOB) and name not in _OF_A_PERSON]
        return ["env", *(f"--unset={name}" for name in ours), *super()._make_submission_command(submission_file_path)]


def executor(config: JobConfig, paths: RunPaths) -> AgentExecutor:
    """submitit's executor with all that ``config`` asks of SLURM; its files go to the run's directory."""
    made = AgentExecutor(folder=paths.slurm)
    made.update_parameters(**_parameters(config))
    return made


def sbatch_text(config: JobConfig, paths: RunPaths) -> str:
    """The batch script that `submit_job` hands to sbatch, to the letter."""
    made = executor(config, paths)
    text: str = made._make_submission_file_text(made._submitit_command_str, uid="")
    return text


def submit_job(config: JobConfig, paths: RunPaths) -> str:
    """Submit the job and return its id. Raises SlurmError with what sbatch said."""
    if shutil.which("sbatch") is None:
        raise SlurmError("sbatch: not found; submit from a login node, or use `hpcelastic run` on this machine")
    files.make_directory(paths.slurm)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            job = executor(config, paths).submit(run_agent, str(paths.root))
    except (FailedJobError, FailedSubmissionError) as error:
        raise SlurmError(f"sbatch refused the job: {_last_words(error)}") from error
    return str(job.job_id)


def minutes(time: str) -> int | None:
    """SLURM's time limit in minutes, rounded up as SLURM does; None where there is no limit. Source: sbatch(1)."""
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:  # D-H, D-H:M, D-H:M:S
        hours, mins, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, mins, seconds = parts
    else:  # M, M:S
        hours, (mins, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def _parameters(config: JobConfig) -> dict[str, Any]:
    """submitit's parameters; whatever it has no name for goes through ``additional_parameters``."""
    slurm, nodes = config.slurm, config.nodes
    given = {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "gpus_per_node": slurm.gpus_per_node,
        "cpus_per_task": slurm.cpus_per_node,
        "constraint": slurm.constraint,
        "exclude": slurm.exclude,
        "setup": list(slurm.setup) or None,
    }
    return {
        "job_name": config.run.name,
        "nodes": nodes.max,
        "stderr_to_stdout": True,
        "wckey": None,
        "time": minutes(slurm.time) if slurm.time else None,
        "srun_args": [*_STEP, *([f"--cpus-per-task={slurm.cpus_per_node}"] if slurm.cpus_per_node else [])],
        "additional_parameters": _additional(slurm, nodes.min, nodes.max),
        **{key: value for key, value in given.items() if value is not None},
    }


def _additional(slurm: SlurmSettings, least: int, most: int) -> dict[str, Any]:
    extra: dict[str, Any] = {"no-kill": True, "requeue" if slurm.requeue else "no-requeue": True}
    if least != most:
        extra["nodes"] = f"{least}-{most}"
    if slurm.time is not None and minutes(slurm.time) is None:
        extra["time"] = slurm.time
    if slurm.memory is not None:
        extra["mem"] = slurm.memory
    return {**extra, **{name: value for name, value in slurm.options.items() if value is not False}}


def _last_words(error: Exception) -> str:
    lines = [line for line in re.split(r"[\r\n]+", str(error)) if line.startswith("sbatch:")]
    said = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines) or str(error)
    return said + ("; is the controller up (scontrol ping)?" if "contact" in said else "")
