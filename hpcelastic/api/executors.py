"""submitit's own executor, configured by a job: for what is not a run."""

from collections.abc import Mapping
from typing import Any

from hpcelastic.api.launch import Job, resolve
from hpcelastic.api.prepare import run_paths
from hpcelastic.config import overrides_from_keywords
from hpcelastic.slurm import submission
from hpcelastic.slurm.executor import AgentExecutor
from hpcelastic.store.paths import RunPaths


def executor(job: Job, *, profile: str | None = None, **overrides: Any) -> AgentExecutor:
    """A `submitit.SlurmExecutor` that asks SLURM for what ``job`` asks; all arguments as for `submit`.

    What it is given runs once on each node, without agents, rounds or restarts. Its files are in the directory
    ``NAME.submitit`` beside that of the run. An entry point is not needed, and not used.
    """
    if isinstance(job, Mapping):
        job = {"entrypoint": {"module": "hpcelastic.worker"}, **job}
    config = resolve(job, overrides_from_keywords(overrides), profile)
    root = run_paths(config).root
    return submission.executor(config, RunPaths(root.with_name(f"{root.name}.submitit")))
