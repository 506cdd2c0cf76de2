"""Create the directory of a run, completely or not at all."""

import contextlib
import errno
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
from hpcelastic.api.registry import DRAFT
from hpcelastic.api.sharing import check_group, group_of, share
from hpcelastic.api.submissions import record_submission
from hpcelastic.backends.connect import open_backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.config import JobConfig, encode
from hpcelastic.doctor.run_check import ensure_verdict
from hpcelastic.doctor.verdict import advise
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.health.node_record import NodeRecord
from hpcelastic.protocol.settings import EMBEDDED, FILE, Settings
from hpcelastic.rendezvous.run import announce_run, open_run, read_state, reopen_run
from hpcelastic.slurm.server import embedded_server
from hpcelastic.storage import files
from hpcelastic.storage.foreign import this_user
from hpcelastic.storage.home import expand_home
from hpcelastic.storage.paths import RunPaths

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def whoami() -> str:
    """Return the name of this user and machine, for changes of a register that no node of the run makes."""
    return f"{this_user()} on {socket.gethostname()}"


def run_paths(config: JobConfig) -> RunPaths:
    """Return the paths of the run that ``config`` describes."""
    given = os.path.expandvars(config.run.directory)
    if "$" in given:
        raise ConfigError(f"run.directory is {config.run.directory!r}, but the variable is not set; set or replace it")
    directory = os.path.abspath(expand_home(given))  # without "..", which mkdir does not resolve
    return RunPaths(Path(directory) / str(config.run.name))


def prepare(config: JobConfig, call: Call | None = None, *, resume: bool = False) -> RunPaths:
    """Create the directory of a new run, or prepare a run to resume. ``call`` is pickled for the agents.

    Raises ConfigError, and leaves nothing behind, if the run exists already (with ``resume``: does not exist), if the
    entry point cannot be started, or if the directory cannot be written.
    """
    check_job(config, Path.cwd())
    paths = run_paths(config)
    if config.run.group:
        check_group(paths, config.run.group)
    if config.health.shared_record is not None:
        NodeRecord(Path(config.health.shared_record)).check()
    if resume:
        _resume(paths, config, call)
        return paths
    try:
        with new_parents_removed(paths.root):
            _create(paths, config, call)
    except OSError as error:
        raise ConfigError(_creation_problem(paths, error)) from error
    return paths


@contextlib.contextmanager
def new_parents_removed(root: Path) -> Iterator[None]:
    """If the block fails, remove the empty directories above ``root`` that it has created."""
    missing = _missing_parents(root)
    try:
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _missing_parents(root: Path) -> list[Path]:
    return [parent for parent in root.parents if not parent.exists()]


def _create(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if paths.root.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    missing = _missing_parents(paths.root)
    paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in missing if config.run.group else ():
        parent.chmod(0o711)  # the group can enter it
    draft = RunPaths(paths.root.with_name(f"{DRAFT}{paths.root.name}-{secrets.token_hex(4)}"))
    draft.root.mkdir(mode=0o700)
    try:
        if config.run.group:
            share(draft, config.run.group)
        _write_inputs(draft, record_submission(draft, paths, config, Path.cwd()), call)
        for directory in (draft.register, draft.leases, draft.events):
            files.make_directory(directory)
        if config.logs.directory is None:  # else the agents create a link
            files.make_directory(draft.logs)
        settings = _settings(draft, config)
        if settings.rendezvous.backend == FILE:
            open_run(FileBackend(draft), str(config.run.name), settings, whoami())
        else:
            announce_run(draft, str(config.run.name), settings)
        os.rename(draft.root, paths.root)
    except BaseException:
        shutil.rmtree(draft.root, ignore_errors=True)
        raise


def _resume(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if not paths.config.exists():
        raise ConfigError(f"{paths.root}: there is no run to resume; remove --resume to start a new run")
    if group_of(paths) != config.run.group:
        raise ConfigError(
            f"{paths.root}: run.group was {group_of(paths) or 'not set'} when the run was created, and cannot change: "
            "set it to that, or start another run with run.name=NEW"
        )
    active = ""
    with contextlib.suppress(SlurmError):  # without SLURM, no job will be submitted either
        active = active_process(paths)
    if active:
        raise ConfigError(
            f"{paths.root}: the run has not ended: {active} belongs to it; end it first: hpcelastic cancel {paths.root}"
        )
    _write_inputs(paths, record_submission(paths, paths, config, Path.cwd()), call)
    settings = _settings(paths, config)
    server = embedded_server(paths, settings) if settings.rendezvous.endpoint == EMBEDDED else contextlib.nullcontext()
    with server, contextlib.closing(open_backend(paths)) as backend:
        reopen_run(backend, whoami(), settings)


def _settings(paths: RunPaths, config: JobConfig) -> Settings:
    """Return the run's settings, with longer times if its filesystem needs them."""
    return advise(config.protocol_settings, ensure_verdict(paths))


def active_process(paths: RunPaths) -> str:
    """Describe an active agent or SLURM job of the run; empty if there is none. Raises SlurmError."""
    with contextlib.closing(open_backend(paths)) as backend:
        pids = local_agents(backend)
        if pids:
            return f"process {pids[0]} on this machine"
        if read_state(backend).phase.final or not jobs_of(paths):
            return ""
    return next((f"SLURM job {job} ({state})" for job, state in live_jobs(paths).items()), "")


def _write_inputs(paths: RunPaths, config: JobConfig, call: Call | None) -> None:
    if call is not None:
        values.save_call(paths.function, *call)
    files.publish(paths.config, files.to_json(encode(_with_absolute_paths(config))))


def _with_absolute_paths(config: JobConfig) -> JobConfig:
    """Return the configuration with an absolute path of the script or program."""
    script, program = config.entrypoint.script, config.entrypoint.program
    if program and "/" in program:
        program = str(Path(program).absolute())
    script = script and str(Path(script).absolute())
    return replace(config, entrypoint=replace(config.entrypoint, script=script, program=program))


def _creation_problem(paths: RunPaths, error: OSError) -> str:
    """Explain why the run's directory cannot be created, and what to do."""
    if paths.root.exists():
        return (
            f"{paths.root}: a run with this name exists already{_status_suffix(paths)}; continue it with --resume "
            "(submit(..., resume=True)), or start another run with run.name=NEW"
        )
    file = next((parent for parent in paths.root.parents if parent.exists() and not parent.is_dir()), None)
    why = f"{file} is a file" if file else error.strerror
    return f"{paths.root}: cannot be created: {why}; set run.directory to a shared directory that you can write to"


def _status_suffix(paths: RunPaths) -> str:
    try:
        with contextlib.closing(open_backend(paths)) as backend:
            state = read_state(backend)
    except Exception:  # a damaged run: its directory exists nevertheless
        return ""
    return f" ({state.phase.value}, {state.reason})"
