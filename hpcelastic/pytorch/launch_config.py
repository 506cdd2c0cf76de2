"""Convert torch's LaunchConfig to settings of hpcelastic's agent. Raises ConfigError before anything starts."""

import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch.distributed.launcher.api import LaunchConfig

from hpcelastic import values
from hpcelastic.agent.batch_system import STOP_SIGNALS
from hpcelastic.agent.commands import program_problem
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.numa import processors
from hpcelastic.agent.settings import AgentSettings, Entrypoint, Numa, WorkerSettings
from hpcelastic.backends.connect import backend_names
from hpcelastic.bootstrap import Task, local_identity
from hpcelastic.config.endpoint import bare_name_error, is_bare_name
from hpcelastic.config.rdzv_conf import RdzvConf, read_conf
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.settings import FILE, NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.pytorch.logs import is_default_directory, log_directory, log_settings
from hpcelastic.pytorch.telemetry import EventContext, check_event_handler
from hpcelastic.slurm.environment import slurm_task
from hpcelastic.storage import files
from hpcelastic.storage.home import expand_home
from hpcelastic.storage.paths import RunPaths, safe_name
from hpcelastic.worker import launched
from hpcelastic.worker.function import PICKLED

_log = logging.getLogger(__name__)

Command = Callable[..., Any] | str | None

_ERRORS_MODULE = "torch.distributed.elastic.multiprocessing.errors"

_DEFAULT_STOP_GRACE = 30.0
_DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""Behaviour of those versions of torch that have no field for it."""

_RUNS_DIRECTORY = "runs"
"""Directory of runs whose rendezvous is in a server, the same as that of ``hpcelastic agent``."""

_START_METHODS = ("spawn", "fork", "forkserver")
"""Accepted start methods. All have the same effect: workers come from the fork server or are new interpreters."""

_BATCH_WARNING = "hpcelastic handles it as a warning of the batch system; remove it from the list"
_UNSUPPORTED_SIGNALS = {
    "SIGUSR1": _BATCH_WARNING,
    "SIGUSR2": _BATCH_WARNING,
    "SIGKILL": "no process can handle it",
    "SIGSTOP": "no process can handle it",
}

_KNOWN_FIELDS = {
    *("min_nodes", "max_nodes", "nproc_per_node", "logs_specs", "run_id", "role", "rdzv_endpoint", "rdzv_backend"),
    *("rdzv_configs", "rdzv_timeout", "max_restarts", "monitor_interval", "start_method", "log_line_prefix_template"),
    *("metrics_cfg", "local_addr", "event_log_handler", "numa_options", "signals_to_handle", "virtual_local_rank"),
    *("duplicate_stdout_filters", "duplicate_stderr_filters", "shutdown_timeout", "exit_barrier_timeout"),
}
"""Supported fields of LaunchConfig. A version of torch may lack some. The agent needs no exit barrier."""


@dataclass(frozen=True)
class LaunchSpec:
    """The launch of one node's workers: its agent's settings, and what torch's interface adds."""

    task: Task
    identity: NodeIdentity
    event_context: EventContext
    monitor_interval: float
    extra_signals: tuple[signal.Signals, ...]
    """Signals that end the agent, in addition to the usual ones."""

    temporary: bool
    """Whether to remove the run's directory once the run has succeeded."""


def launch_spec(config: LaunchConfig, entrypoint: Command, args: Sequence[Any]) -> LaunchSpec:
    """Return the launch for ``config``. Creates the run's directory and writes the function's call there."""
    check_fields(config, _KNOWN_FIELDS, needed=["logs_specs"])  # without logs_specs it creates files
    run_id = config.run_id or _default_run_id(config.max_nodes)
    server = _server(config)
    conf = _rendezvous(config.rdzv_configs, *(server or (FILE, "")))
    settings, agent = _settings(config, conf.settings), _agent(config, entrypoint, args)
    identity = _node_identity(config)
    call = None if isinstance(entrypoint, str) else _pickled_call(entrypoint, args)
    extra_signals = _extra_signals(config)
    event_context = EventContext(
        run_id, config.role, entrypoint_name(entrypoint, args), config.max_restarts, _event_handler(config)
    )
    shared, logs = _shared_directory(config, run_id, server), log_directory(config.logs_specs)

    if shared is not None and logs is not None and not is_default_directory(logs):
        agent = replace(agent, logs=replace(agent.logs, directory=str(logs)))
    paths = RunPaths(shared or _new_directory(logs, run_id))
    if call is not None:
        path = paths.call(f"{safe_name(identity.name)}-{os.getpid()}-{secrets.token_hex(4)}")
        files.make_directory(path.parent)
        files.publish(path, call, private=True)
        worker_args = (PICKLED, str(path).replace("$", "$$"))
        agent = replace(agent, entrypoint=replace(agent.entrypoint, args=worker_args))
    temporary = shared is None and logs is None
    task = Task(paths, run_id, settings, agent, is_host=conf.is_host)
    return LaunchSpec(task, identity, event_context, config.monitor_interval, extra_signals, temporary)


def entrypoint_name(entrypoint: Command, args: Sequence[Any]) -> str:
    """Return the name of the entry point in errors and events. Source: torch/distributed/launcher/api.py."""
    if isinstance(entrypoint, str):
        script = next((str(arg) for arg in args if str(arg)[:1] != "-"), "")
        return script if entrypoint == sys.executable else entrypoint
    return str(getattr(entrypoint, "__name__", type(entrypoint).__name__))


# The entry point


def _program(entrypoint: Command, args: Sequence[Any]) -> Entrypoint:
    if isinstance(entrypoint, str):
        return _command([entrypoint, *map(str, args)])
    if not callable(entrypoint):
        raise ConfigError(f"the entry point is {entrypoint!r}; pass a function, or the name of a script or a program")
    return Entrypoint(module="hpcelastic.worker")


def _command(words: list[str]) -> Entrypoint:
    """Return a command's entry point: a script or module if this Python runs it, so that workers can be forked."""
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    program, *rest = words
    if _is_this_python(program):
        rest = rest[1:] if rest[:1] == ["-u"] else rest
        if rest[:1] == ["-m"] and rest[1:]:
            return Entrypoint(module=rest[1], args=tuple(rest[2:]))
        if rest and rest[0].endswith(".py"):
            if not Path(rest[0]).is_file():
                raise ConfigError(f"{Path(rest[0]).absolute()}: no such script; check its path")
            return Entrypoint(script=rest[0], args=tuple(rest[1:]))
    if problem := program_problem(program, Path.cwd()):
        raise ConfigError(f"{program}: {problem}")
    return Entrypoint(program=program, args=tuple(words[1:]))


def _is_this_python(program: str) -> bool:
    """Return whether ``program`` is the interpreter of this process, in the same environment."""
    found = shutil.which(program)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        return False
    return os.path.samefile(found, sys.executable)


def _pickled_call(function: Callable[..., Any] | None, args: Sequence[Any]) -> bytes:
    """Return the call that workers make. Raises ConfigError if it cannot be pickled."""
    assert function is not None  # `_program` has raised ConfigError
    return values.pickled_call(launched.call, (list(sys.argv), values.pickled_call(function, tuple(args))))


# The settings


def check_fields(given: Any, known: Collection[str], needed: Collection[str] = ()) -> None:
    """Raise ConfigError if a field of ``given``, a dataclass of torch, is set and not in ``known``.

    A newer torch may have such fields. ``needed`` names fields with a default that an object cannot be created without.
    """
    unknown = [each.name for each in fields(given) if each.init and each.name not in known]
    if not unknown:
        return
    required = [each.name for each in fields(given) if each.default is each.default_factory is MISSING]
    values = {name: getattr(given, name) for name in (*required, *needed)}
    default = type(given)(**values)  # not the fields' own defaults: __post_init__ may have replaced them
    for name in unknown:
        if getattr(given, name) != getattr(default, name):
            what = f"{type(given).__name__}.{name}"
            raise ConfigError(f"{what} is not supported by hpcelastic; leave it at its default")


def _settings(config: LaunchConfig, rendezvous: RendezvousSettings) -> Settings:
    try:
        restarts = RestartSettings(config.max_restarts, refill_interval=0, refill_steps=0, identical=0)  # as torch
        return Settings(NodeRange(config.min_nodes, config.max_nodes), rendezvous, restarts)
    except ValueError as error:
        raise ConfigError(f"LaunchConfig: {error}") from error


def _rendezvous(given: Mapping[str, Any], backend: str, endpoint: str) -> RdzvConf:
    try:
        conf = read_conf(given, backend, endpoint, extra_keys=("rank",))
    except ValueError as error:
        raise ConfigError(f"LaunchConfig.rdzv_configs: {error}") from error
    for line in conf.warnings:
        _log.warning("LaunchConfig.rdzv_configs: %s", line)
    return conf


def _agent(config: LaunchConfig, entrypoint: Command, args: Sequence[Any]) -> AgentSettings:
    program = _program(entrypoint, args)
    preload = (*WorkerSettings.preload, *([] if isinstance(entrypoint, str) else [_ERRORS_MODULE]))
    signals = ",".join(_signals(config))
    try:
        workers = replace(_workers(config), preload=preload)
        return AgentSettings(program, workers, log_settings(config), {"TORCHELASTIC_SIGNALS_TO_HANDLE": signals})
    except ValueError as error:
        raise ConfigError(f"LaunchConfig: {error}") from error


def _workers(config: LaunchConfig) -> WorkerSettings:
    count, grace = config.nproc_per_node, getattr(config, "shutdown_timeout", None)
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"LaunchConfig.nproc_per_node is {count!r}; it must be 1 or more")
    if config.start_method not in _START_METHODS:
        raise ConfigError(f"start_method is {config.start_method!r}; use one of {_START_METHODS}")
    if config.monitor_interval <= 0:
        raise ConfigError(f"LaunchConfig.monitor_interval is {config.monitor_interval}; it must be more than 0 seconds")
    return WorkerSettings(
        count,
        role=config.role,
        virtual_local_rank=getattr(config, "virtual_local_rank", False),
        numa=_numa(config),
        stop_grace=_DEFAULT_STOP_GRACE if grace is None else float(grace),
    )


def _numa(config: LaunchConfig) -> Numa:
    options = getattr(config, "numa_options", None)
    if options is None:
        return "none"
    mode: Numa = options.affinity_mode.value
    if options.should_fall_back_if_binding_fails:
        try:
            processors(mode, config.nproc_per_node, os.environ, os.sched_getaffinity(0))
        except ConfigError as error:
            _log.warning("workers are not bound: %s", error)
            return "none"
    return mode


def _signals(config: LaunchConfig) -> list[str]:
    """Return the names of the signals that must end the agent."""
    names = [name.strip() for name in getattr(config, "signals_to_handle", _DEFAULT_SIGNALS).split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__ or name in _UNSUPPORTED_SIGNALS:
            why = _UNSUPPORTED_SIGNALS.get(name, "there is no such signal")
            raise ConfigError(f"LaunchConfig.signals_to_handle has {name!r}: {why}")
    return names


def _extra_signals(config: LaunchConfig) -> tuple[signal.Signals, ...]:
    """Return those of these signals that do not end every agent anyway."""
    return tuple(signum for name in _signals(config) if (signum := signal.Signals[name]) not in STOP_SIGNALS)


def _event_handler(config: LaunchConfig) -> str:
    destination: str = getattr(config, "event_log_handler", "null")
    check_event_handler(destination, "LaunchConfig.event_log_handler")
    return destination


# The run and the node


def _default_run_id(max_nodes: int) -> str:
    task = slurm_task(os.environ)
    if task is not None and max_nodes > 1:
        return f"job-{task.job_id}"
    run_id = str(uuid.uuid4().int)
    if max_nodes > 1:
        _log.warning(
            "LaunchConfig.run_id is missing; this run is %s. Only launchers with the same run_id join one run.", run_id
        )
    return run_id


def _node_identity(config: LaunchConfig) -> NodeIdentity:
    identity = local_identity()
    try:
        order = int(config.rdzv_configs.get("rank", identity.order))
    except ValueError as error:
        raise ConfigError(f"LaunchConfig.rdzv_configs: {error}; rank is the node's number") from error
    return replace(identity, address=config.local_addr or "", order=order)


def _names_a_directory(endpoint: str) -> bool:
    if not endpoint or "://" in endpoint or endpoint.startswith("file:"):
        return False
    return "/" in endpoint or os.path.isdir(os.path.expanduser(endpoint))


def _server(config: LaunchConfig) -> tuple[str, str] | None:
    """Return the backend and its endpoint if a server keeps the rendezvous of several nodes; None for files."""
    endpoint = config.rdzv_endpoint.strip()
    if config.max_nodes == 1 or not endpoint or _names_a_directory(endpoint):
        return None
    if is_bare_name(endpoint) and config.rdzv_backend != "c10d":
        raise ConfigError(bare_name_error("LaunchConfig.rdzv_endpoint", endpoint))
    if config.rdzv_backend not in backend_names():
        names = ", ".join(backend_names())
        raise ConfigError(f"LaunchConfig.rdzv_backend is {config.rdzv_backend!r}; use one of {names}")
    return config.rdzv_backend, endpoint


def _shared_directory(config: LaunchConfig, run_id: str, server: tuple[str, str] | None) -> Path | None:
    """Return the run's directory that all nodes share; None for a run of one node without an endpoint."""
    endpoint = _RUNS_DIRECTORY if server else config.rdzv_endpoint.strip()
    directory = expand_home(endpoint).absolute()
    if not server and not _names_a_directory(endpoint):
        if config.max_nodes > 1:
            raise ConfigError(f"LaunchConfig.rdzv_endpoint is {endpoint!r}: name a directory that all nodes share")
        return None
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"LaunchConfig.rdzv_endpoint is {endpoint!r}, which is a file: name a directory")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ConfigError(
            f"LaunchConfig.run_id is {run_id!r}; it names a directory: use letters, digits, '.', '_' and '-'"
        )
    return directory / run_id


def _new_directory(logs: Path | None, run_id: str) -> Path:
    """Create a directory for the run in the place where torch would create one for the logs."""
    if logs is not None:
        files.make_directory(logs)
    return Path(tempfile.mkdtemp(prefix=f"{safe_name(run_id)}_", dir=logs)).absolute()
