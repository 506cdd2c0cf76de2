"""From a job to a run: `submit`."""

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
from hpcelastic.api.registry import note
from hpcelastic.api.run import Run
from hpcelastic.config import JobConfig, choose_profile, default_name, from_mapping, load, overrides_from_keywords
from hpcelastic.config.overrides import Override
from hpcelastic.errors import ConfigError
from hpcelastic.slurm.submission import remarks
from hpcelastic.store.paths import RunPaths
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
    """Start a run and return at once; it goes on without this process.

    ``job`` is the path of a YAML job file, a mapping with the same keys, or a function, which every rank calls with
    ``args`` and whose return values `Run.result` gives back. ``overrides`` set keys of the job: ``nodes="2..4"``,
    ``slurm__partition="gpu"``. With ``executor="local"`` the agents run on this machine, one for each node that would
    be asked for. ``resume`` continues a run that has ended, in its directory.
    ``profile`` names settings of a cluster in your own file; ``"none"`` keeps those for this cluster out.

    Raises ConfigError if the job is wrong, SlurmError if SLURM refuses it; nothing is left behind then.

    Examples:
        A job file, with two of its keys set anew:

        >>> run = hpcelastic.submit("job.yaml", nodes="1..2", slurm__time="2:00:00")
        >>> run.wait().phase
        'succeeded'

        A function, on this machine; `Run.result` returns its values by rank:

        >>> def train(lr):
        ...     return {"lr": lr}
        >>> hpcelastic.submit(train, 0.1, nodes=2, workers__per_node=1, executor="local").result()
        [{'lr': 0.1}, {'lr': 0.1}]
    """
    if args and not callable(job):
        raise ConfigError("arguments can be given to a function only; set entrypoint.args for a script")
    config = resolve(job, overrides_from_keywords(overrides), profile)
    call = (job, args) if callable(job) else None
    warn([config], executor)
    return start(config, call, executor=executor, resume=resume)


def resolve(job: Job, overrides: Sequence[Override], profile: str | None = None) -> JobConfig:
    """The configuration of a job on this cluster, with a name."""
    below = choose_profile(profile, os.environ)
    if callable(job):
        given = {"entrypoint": {"module": "hpcelastic.worker", "args": [PICKLED]}}
        config, stem = from_mapping(given, overrides, profile=below).config, _name_of(job)
    elif isinstance(job, Mapping):
        config, stem = from_mapping(job, overrides, profile=below).config, "run"
    else:
        config, stem = load(job, overrides, profile=below).config, str(job)
    return config if config.run.name else _named(config, default_name(stem, datetime.now()))


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "function")).strip("<>")


def _named(config: JobConfig, name: str) -> JobConfig:
    """The configuration with a name that no run has yet: several may be submitted within a second."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    named = (replace(config, run=replace(config.run, name=name)) for name in names)
    return next(config for config in named if not run_paths(config).root.exists())


def warn(configs: Iterable[JobConfig], executor: str) -> None:
    """Warn the caller's caller of what they should know of these jobs; before any starts, for a warning may raise."""
    if executor == "slurm":
        for line in dict.fromkeys(line for config in configs for line in remarks(config)):
            warnings.warn(line, stacklevel=3)


def start(config: JobConfig, call: Call | None = None, *, executor: str = "slurm", resume: bool = False) -> Run:
    """Start the run that ``config`` describes."""
    if executor not in ("slurm", "local"):
        raise ConfigError(f"executor is {executor!r}; choose slurm or local")
    with new_parents_removed(run_paths(config).root):
        paths = prepare(config, call, resume=resume)
        try:
            _serve(config, paths, executor)
        except BaseException:
            if not resume:
                shutil.rmtree(paths.root, ignore_errors=True)
            raise
    note(paths.root)
    return Run(paths.root)


def _serve(config: JobConfig, paths: RunPaths, executor: str) -> None:
    if executor == "slurm":
        submit_for(paths, config)
    else:
        LocalNodes(paths, config.nodes.wanted).start()
