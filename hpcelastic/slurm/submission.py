"""From a configuration to SLURM jobs, by submitit: one agent on each node.

An allocation is one job of many nodes, a pool is an array of one-node jobs. Flags of an allocation keep its survivors
alive when a node dies: ``--no-kill`` for the job and for its step, and for the step ``--kill-on-bad-exit=0`` and
``--wait=0``, or srun would end the others after the first task. Three traps are avoided: a job with
``--ntasks-per-node`` and a range of nodes gets the fewest nodes instead of the most (seen with SLURM 22.05), so the
step alone has that flag; a step does not inherit ``--cpus-per-task`` since 22.05, so it is repeated; and ``--time=0``
asks for no limit, which a partition with a limit never grants, so it is never a default.
"""

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from hpcelastic.config import JobConfig, SlurmSettings
from hpcelastic.config.options import as_words, flags
from hpcelastic.config.slurm import minutes
from hpcelastic.errors import SlurmError
from hpcelastic.health.memory import left_out
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.slurm.container import python_command, step_words
from hpcelastic.slurm.entry import run_agent
from hpcelastic.slurm.executor import AgentExecutor
from hpcelastic.store import files
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths

_STEP = ("--ntasks-per-node=1",)
_SURVIVES = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0")

_GIVES_PROCESSORS = {"exclusive", "cpus-per-gpu", "mincpus"}
"""Options of sbatch that give a node's agent more than one processor."""


def executor(config: JobConfig, paths: RunPaths, elements: int | None = None) -> AgentExecutor:
    """submitit's executor with all that ``config`` asks of SLURM; its files go to the run's directory.

    ``elements`` is the length of the array; None for one job.
    """
    slurm = config.slurm
    seen = (Path.cwd() / str(flags(slurm.options).get("chdir", "")), paths.root)
    made = AgentExecutor(folder=paths.slurm, python=python_command(slurm, seen))
    made.update_parameters(**_parameters(_without_bad_nodes(config, paths), elements))
    made.parameters["srun_args"] += step_words(slurm, seen)
    if elements is not None:
        made.make_array(elements)
    return made


def _without_bad_nodes(config: JobConfig, paths: RunPaths) -> JobConfig:
    """``config`` that asks SLURM to leave out, besides ``slurm.exclude``, nodes of this run: bad ones, drained ones."""
    bad = left_out(paths, config.health.half_life) if config.health.exclude else ()
    exclude = ",".join(filter(None, (config.slurm.exclude, *sorted({*bad, *_drained(paths)}))))
    return replace(config, slurm=replace(config.slurm, exclude=exclude or None))


def _drained(paths: RunPaths) -> set[str]:
    if not files.names(paths.register):
        return set()  # there is no run yet
    state = read_state(paths)
    members = (lease.member for lease in backend_of(paths).leases().values()) if state.drained else ()
    return {member.machine for member in members if state.drains(member)}


def remarks(config: JobConfig) -> list[str]:
    """What a person should know of a request before it is submitted, a line each."""
    slurm = config.slurm
    if slurm.cpus_per_node or _GIVES_PROCESSORS & {*flags(slurm.options)}:
        return []
    return [
        "slurm.cpus_per_node is not set: SLURM gives the agent of a node and all of its workers one processor, unless "
        "the partition gives more; set it, or slurm.options.exclusive: true for whole nodes"
    ]


def sbatch_command(config: JobConfig, paths: RunPaths) -> list[str]:
    """The command line that hands `sbatch_text` over, but for the name of its file, in which ``UUID`` is made up."""
    return _executor_of(config, paths)._make_submission_command(paths.slurm / ".submission_file_UUID.sh")


def sbatch_text(config: JobConfig, paths: RunPaths) -> str:
    """The batch script that is handed to sbatch, to the letter."""
    made = _executor_of(config, paths)
    text: str = made._make_submission_file_text(made._submitit_command_str, uid="")
    return text


def _executor_of(config: JobConfig, paths: RunPaths) -> AgentExecutor:
    return executor(config, paths, config.nodes.wanted if config.slurm.shape == "pool" else None)


def submit_job(config: JobConfig, paths: RunPaths) -> str:
    """Submit one job with all nodes and return its id. Raises SlurmError with what sbatch said."""
    with _refusals(paths):
        return str(executor(config, paths).submit(run_agent, str(paths.root)).job_id)


def submit_elements(config: JobConfig, paths: RunPaths, count: int) -> str:
    """Submit ``count`` jobs of one node as one array and return its id. Raises SlurmError with what sbatch said."""
    with _refusals(paths):
        elements = executor(config, paths, count).map_array(run_agent, [str(paths.root)] * count)
    return str(elements[0].job_id).partition("_")[0]


@contextlib.contextmanager
def _refusals(paths: RunPaths) -> Iterator[None]:
    """Gives submitit the place for its files, and words what goes wrong."""
    if shutil.which("sbatch") is None:
        raise SlurmError("sbatch: not found; submit from a login node, or use `hpcelastic run` on this machine")
    files.make_directory(paths.slurm)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            yield
    except (FailedJobError, FailedSubmissionError) as error:
        raise SlurmError(f"sbatch refused the job: {_last_words(error)}") from error


def _parameters(config: JobConfig, elements: int | None) -> dict[str, Any]:
    """submitit's parameters; whatever it has no name for goes through ``additional_parameters``."""
    slurm = config.slurm
    least, most = (config.nodes.min, config.nodes.wanted) if elements is None else (1, 1)
    step = [*_STEP, *(_SURVIVES if elements is None else ())]
    if slurm.cpus_per_node:
        step.append(f"--cpus-per-task={slurm.cpus_per_node}")
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
        "nodes": most,
        "stderr_to_stdout": True,
        "wckey": None,
        "signal_delay_s": slurm.signal_delay,
        "time": minutes(slurm.time) if slurm.time else None,
        "srun_args": [*step, *as_words(flags(slurm.srun_options))],
        "additional_parameters": {**({"no-kill": True} if elements is None else {}), **_additional(slurm, least, most)},
        **{key: value for key, value in given.items() if value is not None},
    }


def _additional(slurm: SlurmSettings, least: int, most: int) -> dict[str, Any]:
    extra: dict[str, Any] = {"requeue" if slurm.requeue else "no-requeue": True}
    if least != most:
        extra["nodes"] = f"{least}-{most}"
    if slurm.time is not None and minutes(slurm.time) is None:
        extra["time"] = slurm.time
    if slurm.memory is not None:
        extra["mem"] = slurm.memory
    return {**extra, **flags(slurm.options)}


def _last_words(error: Exception) -> str:
    lines = [line for line in re.split(r"[\r\n]+", str(error)) if line.startswith("sbatch:")]
    said = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines) or str(error)
    return said + ("; is the controller up (scontrol ping)?" if "contact" in said else "")
