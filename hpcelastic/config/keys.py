"""The keys of a job file: the type of each key, and suggestions for wrong keys. Pure.

The keys are read from the dataclasses. Only the names that other tools use are listed here.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hpcelastic.config.document import KeyPath, dotted
from hpcelastic.config.job import JobConfig

# Names in torchrun, sbatch and submitit, and the keys for them here.
ALIASES = {
    "nnodes": "nodes",
    "min_nodes": "nodes",
    "max_nodes": "nodes",
    "spare_nodes": "nodes.spares",
    "standbys": "nodes.spares",
    "array": "slurm.shape",
    "nproc_per_node": "workers.per_node",
    "nproc": "workers.per_node",
    "preload": "workers.preload",
    "ntasks": "workers.per_node",
    "ntasks_per_node": "workers.per_node",
    "tasks_per_node": "workers.per_node",
    "max_restarts": "restarts.max",
    "rdzv_id": "run.name",
    "run_id": "run.name",
    "job_name": "run.name",
    "rdzv_endpoint": "run.directory",
    "run_directory": "run.directory",
    "run_dir": "run.directory",
    "log_dir": "logs.directory",
    "output_dir": "run.directory",
    "rdzv_conf": "rendezvous",
    "rdzv": "rendezvous",
    "last_call_timeout": "rendezvous.last_call",
    "monitor_interval": "rendezvous.poll",
    "redirects": "logs.redirect",
    "local_ranks_filter": "logs.local_ranks",
    "duplicate_stdout_filters": "logs.match_out",
    "duplicate_stderr_filters": "logs.match_err",
    "shutdown_timeout": "workers.stop_grace",
    "signals_to_handle": "workers.forward_signals",
    "numa_binding": "workers.numa",
    "file_timer": "workers.timers",
    "enable_file_timer": "workers.timers",
    "no_python": "entrypoint.program",
    "binary": "entrypoint.program",
    "health_check": "health.check",
    "hang_detection": "hangs.action",
    "hang_timeout": "hangs.min_limit",
    "watchdog": "hangs",
    "heartbeat_timeout": "hangs.min_limit",
    "straggler_detection": "stragglers.action",
    "healthcheck": "health.check",
    "nic": "network.interface",
    "ifname": "network.interface",
    "socket_ifname": "network.interface",
    "doorbell": "network.notifications",
    "env": "environment",
    "cmd": "entrypoint",
    "command": "entrypoint",
    "m": "entrypoint.module",
    "arguments": "entrypoint.args",
    "mem": "slurm.memory",
    "mem_gb": "slurm.memory",
    "gres": "slurm.gpus_per_node",
    "gpus": "slurm.gpus_per_node",
    "cpus_per_task": "slurm.cpus_per_node",
    "cpus": "slurm.cpus_per_node",
    "container_image": "slurm.container.image",
    "image": "slurm.container.image",
    "container_mounts": "slurm.container.mounts",
    "binds": "slurm.container.mounts",
    "srun_args": "slurm.srun_options",
    "slurm_srun_args": "slurm.srun_options",
    "modules": "slurm.setup",
    "additional_parameters": "slurm.options",
    "timeout_min": "slurm.time",
    "time_limit": "slurm.time",
    "walltime": "slurm.time",
    "sbatch": "slurm",
}


def keys(kind: Any) -> dict[str, Any]:
    """Return the keys of a group, each with the type of its value."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def kind_at(path: KeyPath) -> Any | None:
    """Return the type of the value at ``path``, or None if there is no such key."""
    kind: Any = JobConfig
    for part in path:
        kind = step(kind, part)
    return kind


def step(kind: Any, part: str | int) -> Any | None:
    """Return the type of the item ``part`` of a value of type ``kind``, or None."""
    if is_dataclass(kind):
        return keys(kind).get(str(part))
    if get_origin(kind) is Mapping:
        return get_args(kind)[1]
    return get_args(kind)[0] if get_origin(kind) is tuple and isinstance(part, int) else None


def holds_keys(kind: Any) -> bool:
    """True if keys are allowed below a value of this type."""
    return is_dataclass(kind) or get_origin(kind) is Mapping


def split(name: str) -> KeyPath:
    """Split a key path at its dots. Below a free mapping such as ``environment`` the rest is one key with its dots."""
    parts = name.strip().split(".")
    kind: Any = JobConfig
    for depth, part in enumerate(parts):
        if get_origin(kind) is Mapping:
            return (*parts[:depth], ".".join(parts[depth:]))
        kind = step(kind, part)
    return tuple(parts)


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, without None."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(part for part in parts if part is not NoneType)


def every_key(kind: Any = JobConfig, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every key path of a job file."""
    for name, inner in keys(kind).items():
        yield (*path, name)
        if is_dataclass(inner):
            yield from every_key(inner, (*path, name))


def suggestion(path: KeyPath) -> str:
    """Return a hint for the unknown key at ``path``."""
    group, name = path[:-1], str(path[-1]).lstrip("-").replace("-", "_").lower()
    here = list(keys(kind_at(group)))
    elsewhere = {dotted(key): str(key[-1]) for key in every_key()}
    if name in here:
        return f"write {dotted((*group, name))}"
    if name in ALIASES:
        return f"write {ALIASES[name]}"
    if named := [key for key, last in elsewhere.items() if last == name]:
        return f"write {' or '.join(named)}"
    if close := difflib.get_close_matches(name, here, 1, 0.6):
        return f"did you mean {dotted((*group, close[0]))}?"
    if close := difflib.get_close_matches(name, elsewhere.values(), 1, 0.75):
        return f"did you mean {next(key for key, last in elsewhere.items() if last == close[0])}?"
    if group == ("slurm",):
        return f"if sbatch has this option, write slurm.options.{name.replace('_', '-')}"
    return f"the keys {f'under {dotted(group)}' if group else 'here'} are {', '.join(here)}"
