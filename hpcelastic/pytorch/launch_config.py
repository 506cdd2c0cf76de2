"""torch's LaunchConfig, turned into what an agent of ours is told. Raises ConfigError before anything is started."""

import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.launcher.api import LaunchConfig

from hpcelastic import values
from hpcelastic.agent.batch_system import STOP_SIGNALS
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.numa import processors
from hpcelastic.agent.settings import AgentSettings, Entrypoint, Numa, WorkerSettings
from hpcelastic.agent.workers import program_problem
from hpcelastic.backends.connect import backend_names
from hpcelastic.config.endpoint import bare_name_error, is_bare_name
from hpcelastic.config.rdzv_conf import RdzvConf, read_conf
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.settings import FILE, NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.pytorch.logs import is_torchs_own, log_directory, log_settings
from hpcelastic.pytorch.telemetry import About
from hpcelastic.slurm.entry import Task, local_identity
from hpcelastic.slurm.environment import slurm_task
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths, safe_name
from hpcelastic.worker import launched
from hpcelastic.worker.function import PICKLED

_log = logging.getLogger(__name__)

Command = Callable[..., Any] | str | None

_RECORD = "torch.distributed.elastic.multiprocessing.errors"

_TORCHS_GRACE = 30.0
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""What versions of torch do that have no field for it."""

_RUNS = "runs"
"""Where runs are kept whose rendezvous is in a server, as those of ``hpcelastic agent``."""

_START_METHODS = ("spawn", "fork", "forkserver")
"""All lead to the same workers: forks of a process that has imported what they need, or fresh interpreters."""

_WARNS = "hpcelastic takes it for a warning of the batch system"
_NOT_OURS = {
    "SIGUSR1": _WARNS,
    "SIGUSR2": _WARNS,
    "SIGKILL": "nothing can handle it",
    "SIGSTOP": "nothing can handle it",
}

_FIELDS = {
    *("min_nodes", "max_nodes", "nproc_per_node", "logs_specs", "run_id", "role", "rdzv_endpoint", "rdzv_backend"),
    *("rdzv_configs", "rdzv_timeout", "max_restarts", "monitor_interval", "start_method", "log_line_prefix_template"),
    *("metrics_cfg", "local_addr", "event_log_handler", "numa_options", "signals_to_handle", "virtual_local_rank"),
    *("duplicate_stdout_filters", "duplicate_stderr_filters", "shutdown_timeout", "exit_barrier_timeout"),
}
"""Fields of LaunchConfig that are known here; torch's version may lack some. No agent needs an exit barrier."""


@dataclass(frozen=True)
class Launch:
    """What one launcher does."""

    task: Task
    place: NodeIdentity
    about: About
    monitor_interval: float
    signals: tuple[signal.Signals, ...]
    """Those that are to end the agent beside the usual ones."""

    passing: bool
    """Whether the run's directory serves nobody once the run has succeeded."""


def translated(config: LaunchConfig, entrypoint: Command, args: Sequence[Any]) -> Launch:
    """What ``config`` asks for; the run's directory is made, and the function is kept there."""
    _refuse_unknown(config)
    run_id = config.run_id or _default_id(config.max_nodes)
    server = _server(config)
    conf = _rendezvous(config.rdzv_configs, *(server or (FILE, "")))
    settings, agent, place = _settings(config, conf.settings), _agent(config, entrypoint, args), _place(config)
    call = None if isinstance(entrypoint, str) else _pickled(entrypoint, args)
    more = _more_signals(config)
    about = About(run_id, config.role, name_of(entrypoint, args), config.max_restarts, _handler(config))
    shared, logs = _shared_directory(config, run_id, server), log_directory(config.logs_specs)

    if shared is not None and logs is not None and not is_torchs_own(logs):
        agent = replace(agent, logs=replace(agent.logs, directory=str(logs)))
    paths = RunPaths(shared or _own_directory(logs, run_id))
    if call is not None:
        path = paths.call(f"{safe_name(place.name)}-{os.getpid()}-{secrets.token_hex(4)}")
        files.make_directory(path.parent)
        files.publish(path, call)
        told = (PICKLED, str(path).replace("$", "$$"))
        agent = replace(agent, entrypoint=replace(agent.entrypoint, args=told))
    passing = shared is None and logs is None
    task = Task(paths, run_id, settings, agent, is_host=conf.is_host)
    return Launch(task, place, about, config.monitor_interval, more, passing)


def name_of(entrypoint: Command, args: Sequence[Any]) -> str:
    """How errors and events call it; source: torch/distributed/launcher/api.py."""
    if isinstance(entrypoint, str):
        script = next((str(arg) for arg in args if str(arg)[:1] != "-"), "")
        return script if entrypoint == sys.executable else entrypoint
    return str(getattr(entrypoint, "__name__", type(entrypoint).__name__))


# What is run


def _program(entrypoint: Command, args: Sequence[Any]) -> Entrypoint:
    if isinstance(entrypoint, str):
        return _command([entrypoint, *map(str, args)])
    if not callable(entrypoint):
        raise ConfigError(f"the entry point is {entrypoint!r}; give a function, or the name of a script or a program")
    return Entrypoint(module="hpcelastic.worker")


def _command(words: list[str]) -> Entrypoint:
    """A script or module of this Python, so that it can start warm; or any other program."""
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    program, *rest = words
    if _is_this_python(program):
        rest = rest[1:] if rest[:1] == ["-u"] else rest
        if rest[:1] == ["-m"] and rest[1:]:
            return Entrypoint(module=rest[1], args=tuple(rest[2:]))
        if rest and rest[0].endswith(".py"):
            if not Path(rest[0]).is_file():
                raise ConfigError(f"{Path(rest[0]).absolute()}: no such script")
            return Entrypoint(script=rest[0], args=tuple(rest[1:]))
    if problem := program_problem(program, Path.cwd()):
        raise ConfigError(f"{program}: {problem}")
    return Entrypoint(program=program, args=tuple(words[1:]))


def _is_this_python(program: str) -> bool:
    """Whether it is our own interpreter, and of the same environment."""
    found = shutil.which(program)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        return False
    return os.path.samefile(found, sys.executable)


def _pickled(function: Callable[..., Any] | None, args: Sequence[Any]) -> bytes:
    """The call that workers make. ConfigError if it can't be pickled."""
    assert function is not None  # `_program` has refused it
    return values.pickled_call(launched.call, (list(sys.argv), values.pickled_call(function, tuple(args))))


# How it is run


def _refuse_unknown(config: LaunchConfig) -> None:
    unknown = [each.name for each in fields(config) if each.init and each.name not in _FIELDS]
    if not unknown:
        return
    required = [each.name for each in fields(config) if each.default is each.default_factory is MISSING]
    given = {name: getattr(config, name) for name in (*required, "logs_specs")}  # without logs_specs it makes files
    default = type(config)(**given)  # not the fields' own defaults: what was left out may have been filled in
    for name in unknown:
        if getattr(config, name) != getattr(default, name):
            raise ConfigError(f"LaunchConfig.{name} is not known to hpcelastic; leave it at its default")


def _settings(config: LaunchConfig, rendezvous: RendezvousSettings) -> Settings:
    try:
        return Settings(NodeRange(config.min_nodes, config.max_nodes), rendezvous, RestartSettings(config.max_restarts))
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
    preload = (*WorkerSettings.preload, *([] if isinstance(entrypoint, str) else [_RECORD]))
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
        raise ConfigError(f"LaunchConfig.start_method is {config.start_method!r}; use one of {_START_METHODS}")
    if config.monitor_interval <= 0:
        raise ConfigError(f"LaunchConfig.monitor_interval is {config.monitor_interval}; it must be more than 0 seconds")
    return WorkerSettings(
        count,
        role=config.role,
        virtual_local_rank=getattr(config, "virtual_local_rank", False),
        numa=_numa(config),
        stop_grace=_TORCHS_GRACE if grace is None else float(grace),
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
    """The names of the signals that are to end the agent."""
    names = [name.strip() for name in getattr(config, "signals_to_handle", _SIGNALS).split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__ or name in _NOT_OURS:
            why = _NOT_OURS.get(name, "there is no such signal")
            raise ConfigError(f"LaunchConfig.signals_to_handle has {name!r}: {why}")
    return names


def _more_signals(config: LaunchConfig) -> tuple[signal.Signals, ...]:
    """Those of them that would not end it in any case."""
    return tuple(signum for name in _signals(config) if (signum := signal.Signals[name]) not in STOP_SIGNALS)


def _handler(config: LaunchConfig) -> str:
    destination: str = getattr(config, "event_log_handler", "null")
    try:
        get_logging_handler(destination)
    except KeyError as error:
        raise ConfigError(
            f"LaunchConfig.event_log_handler is {destination!r}, and torch.distributed.elastic.events.handlers has no "
            "handler of that name"
        ) from error
    return destination


# Where it is run


def _default_id(max_nodes: int) -> str:
    task = slurm_task(os.environ)
    if task is not None and max_nodes > 1:
        return f"job-{task.job_id}"
    run_id = str(uuid.uuid4().int)
    if max_nodes > 1:
        _log.warning(
            "LaunchConfig.run_id is missing; this run is %s. Only launchers with the same run_id meet in a run.", run_id
        )
    return run_id


def _place(config: LaunchConfig) -> NodeIdentity:
    place = local_identity()
    try:
        order = int(config.rdzv_configs.get("rank", place.order))
    except ValueError as error:
        raise ConfigError(f"LaunchConfig.rdzv_configs: {error}; rank is the node's number") from error
    return replace(place, address=config.local_addr or "", order=order)


def _names_a_directory(endpoint: str) -> bool:
    if not endpoint or "://" in endpoint or endpoint.startswith("file:"):
        return False
    return "/" in endpoint or Path(endpoint).expanduser().is_dir()


def _server(config: LaunchConfig) -> tuple[str, str] | None:
    """The backend and its endpoint, where a server keeps the rendezvous of several nodes; None for files."""
    endpoint = config.rdzv_endpoint.strip()
    if config.max_nodes == 1 or not endpoint or _names_a_directory(endpoint):
        return None
    if is_bare_name(endpoint) and config.rdzv_backend != "c10d":
        raise ConfigError(bare_name_error("LaunchConfig.rdzv_endpoint", endpoint))
    if config.rdzv_backend not in backend_names():
        have = ", ".join(backend_names())
        raise ConfigError(f"LaunchConfig.rdzv_backend is {config.rdzv_backend!r}; there are {have}")
    return config.rdzv_backend, endpoint


def _shared_directory(config: LaunchConfig, run_id: str, server: tuple[str, str] | None) -> Path | None:
    """Where the run is kept for all nodes to see; None if it has one node, and nobody has said where."""
    endpoint = _RUNS if server else config.rdzv_endpoint.strip()
    directory = Path(endpoint).expanduser().absolute()
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


def _own_directory(logs: Path | None, run_id: str) -> Path:
    """A new directory, where torch would make one for the logs."""
    if logs is not None:
        files.make_directory(logs)
    return Path(tempfile.mkdtemp(prefix=f"{safe_name(run_id)}_", dir=logs)).absolute()
