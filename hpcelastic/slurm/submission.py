"""Submission of SLURM jobs from a configuration, by submitit: one agent on each node.

An allocation is one job of many nodes, a pool is an array of one-node jobs. Flags of an allocation keep the other nodes
alive when a node dies: ``--no-kill`` for the job and for its step, and for the step ``--kill-on-bad-exit=0`` and
``--wait=0``, because srun would end the other tasks after the first one. Three problems are avoided:

- A job with ``--ntasks-per-node`` and a range of nodes gets the minimum instead of the maximum (seen with SLURM 22.05),
  so only the step has that flag.
- Since 22.05 a step does not inherit ``--cpus-per-task``, so the step repeats it.
- ``--time=0`` requests no limit, which a partition with a limit never grants, so it is never a default.
"""

import contextlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import open_backend
from hpcelastic.config import JobConfig, SlurmSettings
from hpcelastic.config.options import as_words, flags
from hpcelastic.config.shortages import shortages
from hpcelastic.config.slurm import minutes
from hpcelastic.errors import SlurmError
from hpcelastic.health.memory import excluded_nodes
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm.container import python_command, pyxis_options
from hpcelastic.slurm.exclusion import recorded_hosts
from hpcelastic.slurm.executor import AgentExecutor
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

RunAgent = Callable[[str], None]
"""The function that each task of a job calls with the run's directory."""

_STEP_OPTIONS = ("--ntasks-per-node=1",)
_SURVIVAL_OPTIONS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0")

_CPU_OPTIONS = {"exclusive", "cpus-per-gpu", "mincpus"}
"""Options of sbatch with which the agent of a node gets more than one processor."""


def make_executor(config: JobConfig, paths: RunPaths, elements: int | None = None) -> AgentExecutor:
    """Return submitit's executor with the options of ``config``. It writes its files to the run's directory.

    ``elements`` is the length of the array; None for one job.
    """
    slurm = config.slurm
    directories = (Path.cwd() / str(flags(slurm.options).get("chdir", "")), paths.root)
    executor = AgentExecutor(folder=paths.slurm, python=python_command(slurm, directories))
    executor.update_parameters(**_parameters(_without_bad_nodes(config, paths), elements))
    executor.parameters["srun_args"] += pyxis_options(slurm, directories)
    if elements is not None:
        executor.make_array(elements)
    return executor


def _without_bad_nodes(config: JobConfig, paths: RunPaths) -> JobConfig:
    """Return ``config`` with the bad nodes and the drained nodes of this run added to ``slurm.exclude``."""
    exclude = ",".join(filter(None, (config.slurm.exclude, *sorted(_hosts_to_exclude(config, paths)))))
    return replace(config, slurm=replace(config.slurm, exclude=exclude or None))


def _hosts_to_exclude(config: JobConfig, paths: RunPaths) -> set[str]:
    """Return the bad hosts and the drained hosts of a run. Its backend is opened only if there may be some."""
    recorded = recorded_hosts(paths, config.health, config.slurm.partition)
    versions, incidents = files.names(paths.register), files.names(paths.incidents)
    if not versions and not incidents:
        return recorded
    with contextlib.closing(open_backend(paths)) as backend:
        bad = excluded_nodes(paths, backend, config.health.half_life) if config.health.exclude else ()
        return {*recorded, *bad, *(_drained_hosts(backend) if versions else ())}


def _drained_hosts(backend: Backend) -> set[str]:
    state = read_state(backend)
    members = (lease.member for lease in backend.leases().values()) if state.drained else ()
    return {member.machine for member in members if state.drains(member)}


def remarks(config: JobConfig) -> list[str]:
    """Return what the user should know about a configuration before its submission, one line each."""
    slurm, lines = config.slurm, shortages(config)
    if slurm.cpus_per_node or _CPU_OPTIONS & {*flags(slurm.options)}:
        return lines
    return [
        *lines,
        "slurm.cpus_per_node is not set: SLURM gives the agent of a node and all of its workers one processor, unless "
        "the partition gives more; set it, or set slurm.options.exclusive: true for whole nodes",
    ]


def sbatch_command(config: JobConfig, paths: RunPaths) -> list[str]:
    """Return the command line that submits `sbatch_text`. ``UUID`` in the name of its file stands for a random id."""
    return _executor_for(config, paths)._make_submission_command(paths.slurm / ".submission_file_UUID.sh")


def sbatch_text(config: JobConfig, paths: RunPaths) -> str:
    """Return the exact batch script that is passed to sbatch."""
    executor = _executor_for(config, paths)
    text: str = executor._make_submission_file_text(executor._submitit_command_str, uid="")
    return text


def _executor_for(config: JobConfig, paths: RunPaths) -> AgentExecutor:
    return make_executor(config, paths, config.nodes.wanted if config.slurm.shape == "pool" else None)


def submit_job(config: JobConfig, paths: RunPaths, run_agent: RunAgent) -> str:
    """Submit one job with all nodes and return its id. Raises SlurmError with the message of sbatch."""
    with _submission_errors(paths):
        return str(make_executor(config, paths).submit(run_agent, str(paths.root)).job_id)


def submit_elements(config: JobConfig, paths: RunPaths, count: int, run_agent: RunAgent) -> str:
    """Submit ``count`` one-node jobs as one array and return its id. Raises SlurmError with the message of sbatch."""
    with _submission_errors(paths):
        elements = make_executor(config, paths, count).map_array(run_agent, [str(paths.root)] * count)
    return str(elements[0].job_id).partition("_")[0]


@contextlib.contextmanager
def _submission_errors(paths: RunPaths) -> Iterator[None]:
    """Make the directory for submitit's files, and raise its errors as SlurmError."""
    if shutil.which("sbatch") is None:
        raise SlurmError("sbatch: not found; submit from a login node, or use `hpcelastic run` on this machine")
    for variable in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        if os.environ.get(variable):
            raise SlurmError(
                f"{variable} is {os.environ[variable]}: jobs for other clusters are not supported, because the "
                "commands and agents of a run ask the cluster that they run on; unset it, and submit there"
            )
    files.make_directory(paths.slurm)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the error that it raises
            yield
    except (FailedJobError, FailedSubmissionError) as error:
        raise SlurmError(f"sbatch refused the job: {_message_of(error)}") from error


def _parameters(config: JobConfig, elements: int | None) -> dict[str, Any]:
    """Return submitit's parameters. Options unknown to submitit are in ``additional_parameters``."""
    slurm = config.slurm
    min_nodes, max_nodes = (config.nodes.min, config.nodes.wanted) if elements is None else (1, 1)
    step = [*_STEP_OPTIONS, *(_SURVIVAL_OPTIONS if elements is None else ())]
    if slurm.cpus_per_node:
        step.append(f"--cpus-per-task={slurm.cpus_per_node}")
    optional = {
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
        "nodes": max_nodes,
        "stderr_to_stdout": True,
        "wckey": None,
        "signal_delay_s": slurm.signal_delay,
        "time": minutes(slurm.time) if slurm.time else None,
        "srun_args": [*step, *as_words(flags(slurm.srun_options))],
        "additional_parameters": {
            **(_options_of_allocations(slurm) if elements is None else {}),
            **_additional_parameters(slurm, min_nodes, max_nodes),
        },
        **{key: value for key, value in optional.items() if value is not None},
    }


def _options_of_allocations(slurm: SlurmSettings) -> dict[str, Any]:
    """Return the options that only a job of several nodes has."""
    return {"no-kill": True, **({} if slurm.segment is None else {"segment": slurm.segment})}


def _additional_parameters(slurm: SlurmSettings, min_nodes: int, max_nodes: int) -> dict[str, Any]:
    extra: dict[str, Any] = {"requeue" if slurm.requeue else "no-requeue": True}
    if min_nodes != max_nodes:
        extra["nodes"] = f"{min_nodes}-{max_nodes}"
    if slurm.time is not None and minutes(slurm.time) is None:
        extra["time"] = slurm.time
    if slurm.memory is not None:
        extra["mem"] = slurm.memory
    return {**extra, **flags(slurm.options)}


def _message_of(error: Exception) -> str:
    lines = [line for line in re.split(r"[\r\n]+", str(error)) if line.startswith("sbatch:")]
    message = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines) or str(error)
    return message + ("; is the controller up (scontrol ping)?" if "contact" in message else "")
