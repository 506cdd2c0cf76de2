"""The options of torchrun for workers and their output in `hpcelastic agent`.

Each option becomes a setting, or is accepted with a message that it is not needed, or is refused with an alternative.
docs/torchrun.md lists all options with their meaning in torchrun. Source: torch/distributed/run.py.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from hpcelastic.agent.commands import program_problem
from hpcelastic.agent.member import count_gpus
from hpcelastic.agent.settings import Entrypoint, LogSettings, Numa, RankStreams, Streams, WorkerSettings
from hpcelastic.errors import ConfigError

OPTIONS = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "module", "no-python", "run-path", "log-dir",
    "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank",
    "master-addr", "master-port", "local-addr", "signals-to-handle", "shutdown-timeout", "virtual-local-rank",
    "exit-barrier-timeout",
)  # fmt: skip
"""The options of torchrun whose defaults can be set in the environment."""

_STREAMS = dict(zip("0123", ("none", "out", "err", "both"), strict=True))

_ALWAYS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that always end an agent, independent of --signals-to-handle."""

_UNNEEDED = {
    "monitor_interval": "the agent detects the exit of a worker at once",
    "start_method": "workers are forked from a process that has imported torch; see --preload",
    "run_path": "workers are forked from a process that has imported torch; see --preload",
    "exit_barrier_timeout": "every agent stays until the run has ended",
}
"""Options that have no effect, with the reason."""

_MONITOR_INTERVAL, _MIN_MONITOR_INTERVAL = 0.1, 0.01
"""Default and minimum of --monitor-interval in seconds."""

_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"

# Settings, and the options that set them.
_FLAGS = {
    "workers.per_node": "--nproc-per-node",
    "workers.role": "--role",
    "workers.stop_grace": "--shutdown-timeout",
    "workers.forward_signals": "--signals-to-handle",
    "workers.preload": "--preload",
    "restarts.max": "--max-restarts",
    "logs.redirect": "--redirects",
    "logs.tee": "--tee",
    "logs.local_ranks": "--local-ranks-filter",
    "logs.match_out": "--duplicate-stdout-filters",
    "logs.match_err": "--duplicate-stderr-filters",
    "logs.directory": "--log-dir",
}

_COUNT = """
import sys, torch
device = getattr(torch, sys.argv[1], None)
print(device.device_count() if device is not None and device.is_available() else 0)
"""

_TORCH_TIMEOUT = 300.0
"""Seconds for a process to import torch and count devices."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of torchrun for workers and for their output."""
    workers = parser.add_argument_group("workers, with the options of torchrun")
    _add(
        workers,
        "--nproc-per-node",
        default="1",
        metavar="N",
        help="number of workers on this node, or auto, gpu, xpu, npu, cpu (default: 1)",
    )
    _add(workers, "--role", metavar="NAME", help="value of ROLE_NAME for the workers of this node")
    workers.add_argument("-m", "--module", action="store_true", help="SCRIPT is a Python module, as for python -m")
    _add(workers, "--no-python", action="store_true", help="SCRIPT is a program, not a Python script")
    _add(workers, "--virtual-local-rank", action="store_true", help="each worker sees only its own GPU, as number 0")
    _add(
        workers,
        "--shutdown-timeout",
        type=int,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL (default: 15)",
    )
    what = f"bind each worker to the CPUs near its GPU: {', '.join(get_args(Numa)[1:])}"
    _add(workers, "--numa-binding", metavar="HOW", help=what)
    what = (
        "signals to forward to workers: SIGUSR1, SIGUSR2, SIGCONT; "
        "SIGTERM, SIGINT and SIGHUP always end the agent, listed or not"
    )
    _add(workers, "--signals-to-handle", default=",".join(_ALWAYS), metavar="NAME,...", help=what)
    what = "modules to import once for all workers; '' starts each worker as a new process (default: torch)"
    workers.add_argument("--preload", default="torch", metavar="MODULE,...", help=what)
    output = parser.add_argument_group("output of workers, with the options of torchrun")
    what = "streams to write to files: none, out, err or both; or by local rank: 0:out,1:both (default: none)"
    output.add_argument("-r", "--redirects", default="none", metavar="WHAT", help=what)
    what = "streams to write to files and to the output of the agent: as for --redirects (default: none)"
    output.add_argument("-t", "--tee", default="none", metavar="WHAT", help=what)
    _add(output, "--log-dir", metavar="DIR", help="directory of these files (default: in the run's directory)")
    _add(
        output,
        "--local-ranks-filter",
        default="",
        metavar="N,...",
        help="local ranks whose output the agent prints (default: all)",
    )
    for stream in ("stdout", "stderr"):
        what = f"copy lines of {stream} that contain one of these texts to a separate file; ,, is a comma"
        _add(output, f"--duplicate-{stream}-filters", default="", metavar="TEXT,...", help=what)
    what = "handler of torch's events, such as console, that receives events and metrics as under torchrun"
    _add(output, "--event-log-handler", metavar="NAME", help=what)
    for flag in ("--logs-specs", "--start-method"):
        _add(parser, flag, help=argparse.SUPPRESS)
    _add(parser, "--monitor-interval", type=float, help=argparse.SUPPRESS)
    _add(parser, "--exit-barrier-timeout", type=float, help=argparse.SUPPRESS)
    for flag in ("--run-path", "--use-env"):  # --use-env of torch.distributed.launch is always in force
        _add(parser, flag, action="store_true", help=argparse.SUPPRESS)


def _add(group: argparse._ActionsContainer, flag: str, **how: object) -> None:
    """Add an option in both spellings of torchrun, with dashes and with underscores."""
    spellings = dict.fromkeys((flag, flag[:2] + flag[2:].replace("-", "_")))
    group.add_argument(*spellings, **how)  # type: ignore[arg-type]  # passed through


def apply_environment_defaults(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Use ``PET_NNODES`` as the default of ``--nnodes``, and so on, like torchrun."""
    for option in OPTIONS:
        action = parser._option_string_actions[f"--{option}"]
        name = f"PET_{action.dest.upper()}"
        if name in environ:
            action.default = _from_environment(action, name, environ[name])


def _from_environment(action: argparse.Action, name: str, text: str) -> object:
    try:
        if action.nargs == 0:
            return bool(int(text))
        return action.type(text) if callable(action.type) else text
    except ValueError:
        form = "1 or 0" if action.nargs == 0 else "a number"
        raise ConfigError(f"the environment variable {name} is {text!r}; write {form}, or unset it") from None


def unneeded(args: argparse.Namespace) -> list[str]:
    """Return a line for each given option that has no effect."""
    used = {"monitor_interval"} if event_handler(args) is not None else set()
    return [
        f"--{name.replace('_', '-')} is not needed: {why}"
        for name, why in _UNNEEDED.items()
        if name not in used and getattr(args, name) not in (None, False)
    ]


def unserved(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of torch's agent that asks for a service that this agent does not have."""
    if _HEALTH_CHECK_PORT not in environ:
        return []
    return [f"{_HEALTH_CHECK_PORT} is ignored: no server listens there; use hpcelastic status"]


def event_handler(args: argparse.Namespace) -> str | None:
    """Return the name of the handler that receives torch's events; None if none does."""
    name: str | None = args.event_log_handler
    return None if name in (None, "", "null") else name


def monitor_interval(args: argparse.Namespace) -> float:
    """Return the seconds between two metrics that report healthy workers."""
    given = args.monitor_interval
    return _MONITOR_INTERVAL if given is None else max(_MIN_MONITOR_INTERVAL, given)


def with_flag_names(message: str) -> str:
    """Replace the name of a setting at the start of an error message by its option."""
    for setting, flag in _FLAGS.items():
        if message.startswith(f"{setting} "):
            return message.replace(setting, flag, 1)
    return message


def check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that hpcelastic does not support or that contradict each other."""
    if args.start_method not in (None, "spawn", "fork", "forkserver"):
        raise ConfigError(f"--start-method is {args.start_method!r}; write spawn, fork or forkserver, or remove it")
    if args.logs_specs not in (None, "default"):
        raise ConfigError(
            f"--logs-specs is {args.logs_specs!r}, but the commands and the error reports of hpcelastic need its own "
            "names of log files; use --log-dir, --redirects, --tee, --local-ranks-filter and "
            "--duplicate-stdout-filters, or torchrun --rdzv-backend=hpcelastic, which loads the class"
        )
    if args.no_python and args.module and not args.run_path:
        raise ConfigError("--no-python runs a program, but --module runs a Python module; remove one of them")


def entrypoint(args: argparse.Namespace) -> Entrypoint:
    """Return the entry point of each worker. Raises ConfigError if it does not exist."""
    if not args.script:
        raise ConfigError("nothing to run; write a script, -m and a module, or --run-dir with the directory of a run")
    given = tuple(args.script_args)
    if args.no_python and not args.run_path:
        if problem := program_problem(args.script, Path.cwd()):
            raise ConfigError(f"{args.script}: {problem}")
        return Entrypoint(program=args.script, args=given)
    if args.module and not args.run_path:
        return Entrypoint(module=args.script, args=given)
    if not Path(args.script).is_file():
        raise ConfigError(f"{Path(args.script).absolute()}: no such script; check its path")
    return Entrypoint(args.script, args=given)


def workers(args: argparse.Namespace) -> WorkerSettings:
    """Return the settings of the node's workers. Raises ConfigError, ValueError."""
    signals = dict.fromkeys(filter(None, (name.strip() for name in args.signals_to_handle.split(","))))
    return WorkerSettings(
        _per_node(args.nproc_per_node),
        role=WorkerSettings.role if args.role is None else args.role,
        virtual_local_rank=args.virtual_local_rank,
        numa=_numa(args.numa_binding),
        stop_grace=_stop_grace(args.shutdown_timeout),
        forward_signals=tuple(name for name in signals if name not in _ALWAYS),
        preload=tuple(filter(None, (name.strip() for name in args.preload.split(",")))),
    )


def logs(args: argparse.Namespace) -> LogSettings:
    """Return the settings of the workers' output. Raises ConfigError, ValueError."""
    prefix = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    return LogSettings(
        _streams("--redirects", args.redirects),
        _streams("--tee", args.tee),
        LogSettings.prefix if prefix is None else prefix,
        _local_ranks(args.local_ranks_filter),
        _texts(args.duplicate_stdout_filters),
        _texts(args.duplicate_stderr_filters),
        args.log_dir,
    )


def _per_node(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if text == "gpu":
        if not count_gpus(os.environ):
            raise ConfigError("--nproc-per-node is gpu, but this node has no GPU; write a number")
        return "auto"
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if text in ("xpu", "npu"):
        return _count_with_torch(text)
    if not text.isdigit():
        raise ConfigError(f"--nproc-per-node is {text!r}; write a number, auto, gpu, xpu, npu or cpu")
    return int(text)


def _count_with_torch(kind: str) -> int:
    """Count devices of a kind that only torch can count, in a separate process."""
    command = [sys.executable, "-c", _COUNT, kind]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TORCH_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        what = f"torch has not counted these devices within {_TORCH_TIMEOUT:g} s"
        raise ConfigError(f"--nproc-per-node is {kind}, but {what}; write a number") from None
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]
    if done.returncode or not last.isdigit():
        raise ConfigError(f"--nproc-per-node is {kind}, but torch cannot count these devices: {last}; write a number")
    if not int(last):
        raise ConfigError(f"--nproc-per-node is {kind}, but torch finds no such device on this node; write a number")
    return int(last)


def _numa(text: str | None) -> Numa:
    for known in get_args(Numa):
        if known == (text or "none"):
            return known  # type: ignore[no-any-return]  # one of Numa
    raise ConfigError(f"--numa-binding is {text!r}; write {', '.join(get_args(Numa)[1:])}, or remove it")


def _stop_grace(given: int | None) -> float:
    if given is not None:
        return given
    text = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    if text is None:
        return WorkerSettings.stop_grace
    if not text.isdigit():
        raise ConfigError(
            f"the environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT is {text!r}; write seconds, or unset it"
        )
    return int(text)


def _streams(flag: str, text: str) -> Streams | RankStreams:
    one = _one_stream(text)
    if one is not None:
        return one
    found: dict[str, Streams] = {}
    for pair in text.split(","):
        rank, _, what = pair.partition(":")
        streams = _one_stream(what)
        if streams is None or not re.fullmatch(r"[0-9]+", rank):
            form = "none, out, err or both; or a value for each local rank: 0:out,1:both"
            raise ConfigError(f"{flag} is {text!r}; write {form}")
        found[str(int(rank))] = streams
    return found


def _one_stream(text: str) -> Streams | None:
    name = _STREAMS.get(text, text)
    return next((known for known in get_args(Streams) if known == name), None)


def _local_ranks(text: str) -> tuple[int, ...]:
    if text and not re.fullmatch(r" *[0-9]+ *(, *[0-9]+ *)*", text):
        raise ConfigError(f"--local-ranks-filter is {text!r}; write local ranks, such as 0,1,2")
    return tuple(int(rank) for rank in text.split(",")) if text else ()


def _texts(text: str) -> tuple[str, ...]:
    """Split a list of texts at its commas. Two commas are a comma inside a text."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")) if text else ()
