"""A run's directory: made whole or not at all."""

import contextlib
import errno
import getpass
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.api.checks import check_job
from hpcelastic.api.jobs import jobs_of, live_jobs, local_agents
from hpcelastic.config import JobConfig, encode
from hpcelastic.doctor.ground import established
from hpcelastic.doctor.verdict import advise
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.protocol.settings import EMBEDDED, FILE, Settings
from hpcelastic.rendezvous.rendezvous import announce_run, open_run, read_state, reopen_run
from hpcelastic.slurm.serving import embedded_server
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def whoami() -> str:
    """Who writes to a register without being a node of the run."""
    return f"{getpass.getuser()} on {socket.gethostname()}"


def run_paths(config: JobConfig) -> RunPaths:
    """Where the run that ``config`` names is, or will be."""
    given = os.path.expandvars(config.run.directory)
    if "$" in given:
        raise ConfigError(
            f"run.directory is {config.run.directory!r}, with a variable that is not set; set or replace it"
        )
    directory = os.path.abspath(Path(given).expanduser())  # without .., which mkdir would take literally
    return RunPaths(Path(directory) / str(config.run.name))


def prepare(config: JobConfig, call: Call | None = None, *, resume: bool = False) -> RunPaths:
    """Make the directory of a new run, or of one that goes on, with all that its agents need; ``call`` is pickled.

    Raises ConfigError, and leaves nothing behind, if there is such a run already (or none, with ``resume``), if the
    entry point can't be started, or if the directory can't be written.
    """
    check_job(config, Path.cwd())
    paths = run_paths(config)
    if resume:
        _resume(paths, config, call)
        return paths
    try:
        with new_parents_removed(paths.root):
            _create(paths, config, call)
    except OSError as error:
        raise ConfigError(_in_the_way(paths, error)) from error
    return paths


@contextlib.contextmanager
def new_parents_removed(root: Path) -> Iterator[None]:
    """Should the block fail, remove those directories above ``root`` that were not there before and are empty."""
    missing = [parent for parent in root.parents if not parent.exists()]
    try:
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _create(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if paths.root.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = RunPaths(paths.root.with_name(f".new-{paths.root.name}-{secrets.token_hex(4)}"))
    draft.root.mkdir(mode=0o700)
    try:
        _fill(draft, config, call)
        for directory in (draft.register, draft.leases, draft.events):
            files.make_directory(directory)
        if config.logs.directory is None:  # else there will be a link
            files.make_directory(draft.logs)
        settings = _settings(draft, config)
        if settings.rendezvous.backend == FILE:
            open_run(draft, str(config.run.name), settings, whoami())
        else:
            announce_run(draft, str(config.run.name), settings)
        os.rename(draft.root, paths.root)
    except BaseException:
        shutil.rmtree(draft.root, ignore_errors=True)
        raise


def _resume(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if not paths.config.exists():
        raise ConfigError(f"{paths.root}: there is no run to resume; leave --resume out to start one")
    served = _served_by(paths)
    if served:
        raise ConfigError(
            f"{paths.root}: is not over, {served} serves it; end it first: hpcelastic cancel {paths.root}"
        )
    _fill(paths, config, call)
    settings = _settings(paths, config)
    with embedded_server(paths, settings) if settings.rendezvous.endpoint == EMBEDDED else contextlib.nullcontext():
        reopen_run(paths, whoami(), settings)


def _settings(paths: RunPaths, config: JobConfig) -> Settings:
    """The run's settings, with times raised where its filesystem needs longer ones."""
    return advise(config.protocol_settings, established(paths))


def _served_by(paths: RunPaths) -> str:
    """What would fight with those who resume the run, in words; empty if there is nothing."""
    pids = local_agents(paths)
    if pids:
        return f"process {pids[0]} on this machine"
    if read_state(paths).phase.final or not jobs_of(paths):
        return ""
    with contextlib.suppress(SlurmError):  # then a job will not be submitted either
        return next((f"SLURM job {job} ({state})" for job, state in live_jobs(paths).items()), "")
    return ""


def _fill(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if call is not None:
        values.save_call(paths.function, *call)
    files.publish(paths.config, files.to_json(encode(_located(config))))


def _located(config: JobConfig) -> JobConfig:
    """The configuration with a script, or a program, that is found from every working directory."""
    script, program = config.entrypoint.script, config.entrypoint.program
    if program and "/" in program:
        program = str(Path(program).absolute())
    script = script and str(Path(script).absolute())
    return replace(config, entrypoint=replace(config.entrypoint, script=script, program=program))


def _in_the_way(paths: RunPaths, error: OSError) -> str:
    """Why the run's directory can't be created, and what to do."""
    if paths.root.exists():
        return (
            f"{paths.root}: there is a run of this name already{_how_it_stands(paths)}; continue it with --resume "
            "(submit(..., resume=True)), or start another one with run.name=NEW"
        )
    file = next((parent for parent in paths.root.parents if parent.exists() and not parent.is_dir()), None)
    why = f"{file} is a file" if file else error.strerror
    return f"{paths.root}: cannot be created: {why}; set run.directory to a shared directory that is yours"


def _how_it_stands(paths: RunPaths) -> str:
    try:
        state = read_state(paths)
    except Exception:  # whatever is wrong with it: it is in the way
        return ""
    return f" ({state.phase.value}, {state.reason})"
