"""A submitit executor that is configured by a job, for functions that are not a run."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from hpcelastic.api.launch import Job, resolve
from hpcelastic.api.prepare import run_paths
from hpcelastic.config import overrides_from_keywords
from hpcelastic.slurm import submission
from hpcelastic.slurm.executor import AgentExecutor
from hpcelastic.storage.paths import RunPaths


def executor(job: Job, *, profile: str | None = None, **overrides: Any) -> AgentExecutor:
    """Return a `submitit.SlurmExecutor` with the SLURM request of ``job``. The arguments are those of `submit`.

    A submitted function runs once on each node, without agents, rounds or restarts. Its files are in the directory
    ``NAME.submitit`` beside the directory of the run. An entry point is not needed, and not used.
    """
    if isinstance(job, Mapping):
        job = {"entrypoint": {"module": "hpcelastic.worker"}, **job}
    report = functools.partial(warnings.warn, stacklevel=3)
    config = resolve(job, overrides_from_keywords(overrides), profile, report)
    root = run_paths(config).root
    return submission.make_executor(config, RunPaths(root.with_name(f"{root.name}.submitit")))
