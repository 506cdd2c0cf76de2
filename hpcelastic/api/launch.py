"""Start a run of a job: `submit`."""

import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any, Literal

from hpcelastic.api.jobs import LocalNodes, submit_for
from hpcelastic.api.prepare import Call, new_parents_removed, prepare, run_paths
from hpcelastic.api.registry import record_run
from hpcelastic.api.run import Run
from hpcelastic.config import (
    JobConfig,
    choose_profile,
    default_name,
    from_mapping,
    load,
    overrides_from_keywords,
    read_site,
)
from hpcelastic.config.overrides import Override
from hpcelastic.errors import ConfigError
from hpcelastic.slurm.submission import remarks
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker.function import PICKLED

Job = str | PathLike[str] | Mapping[str, Any] | Callable[..., Any]


def submit(
    job: Job,
    *args: Any,
    executor: Literal["slurm", "local"] = "slurm",
    resume: bool = False,
    profile: str | None = None,
    **overrides: Any,
) -> Run:
    """Start a run and return at once. The run continues when this process ends.

    ``job`` is the path of a YAML job file, a mapping with the same keys, or a function. Every rank calls the function
    with ``args``, and `Run.result` returns its return values. ``overrides`` set keys of the job: ``nodes="2..4"``,
    ``slurm__partition="gpu"``. With ``executor="local"`` the agents run on this machine, one for each requested node.
    ``resume`` continues a run that has ended, in its directory.
    ``profile`` is the name of a profile in the user's configuration file; ``"none"`` disables profiles.

    Raises ConfigError if the job is not valid, and SlurmError if SLURM rejects it. Then nothing is left behind.

    Examples:
        A job file with two overrides:

        >>> run = hpcelastic.submit("job.yaml", nodes="1..2", slurm__time="2:00:00")
        >>> run.wait().phase
        'succeeded'

        A function on this machine. `Run.result` returns its values by rank:

        >>> def train(lr):
        ...     return {"lr": lr}
        >>> hpcelastic.submit(train, 0.1, nodes=2, workers__per_node=1, executor="local").result()
        [{'lr': 0.1}, {'lr': 0.1}]
    """
    if args and not callable(job):
        raise ConfigError("only a function takes arguments; set entrypoint.args for a script")
    deprecations: list[str] = []
    config = resolve(job, overrides_from_keywords(overrides), profile, deprecations.append)
    call = (job, args) if callable(job) else None
    warn([config], executor, deprecations)
    return start(config, call, executor=executor, resume=resume)


def resolve(
    job: Job,
    overrides: Sequence[Override],
    profile: str | None = None,
    report: Callable[[str], object] = warnings.warn,
) -> JobConfig:
    """Return the configuration of a job on this cluster, with a name. Calls ``report`` with each warning."""
    below, site = choose_profile(profile, os.environ), read_site(os.environ)
    if callable(job):
        given = {"entrypoint": {"module": "hpcelastic.worker", "args": [PICKLED]}}
        resolved, stem = from_mapping(given, overrides, profile=below, site=site), _name_of(job)
    elif isinstance(job, Mapping):
        resolved, stem = from_mapping(job, overrides, profile=below, site=site), "run"
    else:
        resolved, stem = load(job, overrides, profile=below, site=site), str(job)
    for line in resolved.warnings:
        report(line)
    config = resolved.config
    return config if config.run.name else _named(config, default_name(stem, datetime.now()))


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "function")).strip("<>")


def _named(config: JobConfig, name: str) -> JobConfig:
    """Return the configuration with an unused name: several runs can be submitted within a second."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    named = (replace(config, run=replace(config.run, name=name)) for name in names)
    return next(config for config in named if not run_paths(config).root.exists())


def warn(configs: Iterable[JobConfig], executor: str, deprecations: Iterable[str]) -> None:
    """Issue the warnings about these jobs, at the caller of the caller.

    Call it before any job starts, because a warning filter can turn a warning into an exception.
    """
    lines = [*deprecations, *(line for config in configs for line in remarks(config) if executor == "slurm")]
    for line in dict.fromkeys(lines):
        warnings.warn(line, stacklevel=3)


def start(config: JobConfig, call: Call | None = None, *, executor: str = "slurm", resume: bool = False) -> Run:
    """Start the run that ``config`` describes."""
    if executor not in ("slurm", "local"):
        raise ConfigError(f"executor is {executor!r}; write slurm or local")
    with new_parents_removed(run_paths(config).root):
        paths = prepare(config, call, resume=resume)
        try:
            _start_agents(config, paths, executor)
        except BaseException:
            if not resume:
                shutil.rmtree(paths.root, ignore_errors=True)
            raise
    record_run(paths.root)
    return Run(paths.root)


def _start_agents(config: JobConfig, paths: RunPaths, executor: str) -> None:
    if executor == "slurm":
        submit_for(paths, config)
    else:
        LocalNodes(paths, config.nodes.wanted).start()
