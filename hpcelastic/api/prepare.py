"""A run's directory: made whole or not at all."""

import getpass
import os
import secrets
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.api.checks import check_entrypoint
from hpcelastic.config import JobConfig, encode
from hpcelastic.errors import ConfigError
from hpcelastic.rendezvous.rendezvous import open_run, read_state, reopen_run
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths


def whoami() -> str:
    """Who writes to a register without being a node of the run."""
    return f"{getpass.getuser()} on {socket.gethostname()}"


def run_paths(config: JobConfig) -> RunPaths:
    """Where the run that ``config`` names is, or will be."""
    return RunPaths(Path(config.run.directory).absolute() / str(config.run.name))


def prepare(config: JobConfig, call: Any = None, *, resume: bool = False) -> RunPaths:
    """Make the directory of a new run, or of one that goes on, with all that its agents need; ``call`` is pickled.

    Raises ConfigError, and leaves nothing behind, if there is such a run already (or none, with ``resume``), if the
    entry point can't be started, or if the directory can't be written.
    """
    check_entrypoint(config.entrypoint, Path.cwd())
    paths = run_paths(config)
    if resume:
        _resume(paths, config, call)
        return paths
    if paths.root.exists():
        raise ConfigError(
            f"{paths.root}: there is a run of this name already{_how_it_stands(paths)}; continue it with --resume "
            "(submit(..., resume=True)), or start another one with run.name=NEW"
        )
    try:
        _create(paths, config, call)
    except OSError as error:
        raise ConfigError(
            f"{paths.root}: cannot be created: {error.strerror}; set run.directory to a shared one that is yours"
        ) from error
    return paths


def _create(paths: RunPaths, config: JobConfig, call: Any) -> None:
    paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = RunPaths(paths.root.with_name(f".new-{paths.root.name}-{secrets.token_hex(4)}"))
    draft.root.mkdir(mode=0o700)
    try:
        _fill(draft, config, call)
        for directory in (draft.register, draft.leases, draft.events, draft.logs):
            files.make_directory(directory)
        open_run(draft, str(config.run.name), config.protocol_settings, whoami())
        os.rename(draft.root, paths.root)
    except BaseException:
        shutil.rmtree(draft.root, ignore_errors=True)
        raise


def _resume(paths: RunPaths, config: JobConfig, call: Any) -> None:
    if not paths.config.exists():
        raise ConfigError(f"{paths.root}: there is no run to resume; leave --resume out to start one")
    _fill(paths, config, call)
    reopen_run(paths, whoami(), config.protocol_settings)


def _fill(paths: RunPaths, config: JobConfig, call: Any) -> None:
    if call is not None:
        values.save_pickle(paths.function, call)
    files.publish(paths.config, files.to_json(encode(_located(config))))


def _located(config: JobConfig) -> JobConfig:
    """The configuration with a script that is found from every working directory."""
    script = config.entrypoint.script
    return replace(config, entrypoint=replace(config.entrypoint, script=script and str(Path(script).absolute())))


def _how_it_stands(paths: RunPaths) -> str:
    try:
        state = read_state(paths)
    except Exception:  # whatever is wrong with it: it is in the way
        return ""
    return f" ({state.phase.value}, {state.reason})"
