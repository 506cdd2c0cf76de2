"""torchrun's options for workers and their output, as `hpcelastic agent` takes them.

Each becomes a setting, or is accepted and not needed, which is said, or is refused with what to do instead.
docs/torchrun.md has them all, beside torchrun's own meaning. Source: torch/distributed/run.py.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from hpcelastic.agent.node import count_gpus
from hpcelastic.agent.settings import Entrypoint, LogSettings, Numa, RankStreams, Streams, WorkerSettings
from hpcelastic.agent.workers import program_problem
from hpcelastic.errors import ConfigError

OPTIONS = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "module", "no-python", "run-path", "log-dir",
    "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank",
    "master-addr", "master-port", "local-addr", "signals-to-handle", "shutdown-timeout", "virtual-local-rank",
    "exit-barrier-timeout",
)  # fmt: skip
"""Those of torchrun's options whose default may stand in the environment."""

_STREAMS = dict(zip("0123", ("none", "out", "err", "both"), strict=True))

_ALWAYS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that end an agent, whatever --signals-to-handle says."""

_UNNEEDED = {
    "monitor_interval": "a worker's end is seen at once",
    "start_method": "workers are forked from a process that has imported torch: see --preload",
    "run_path": "workers are forked from a process that has imported torch: see --preload",
    "event_log_handler": "what an agent does is noted in the run's directory, in events",
    "exit_barrier_timeout": "every agent stays until the run has ended",
}
"""What is accepted without effect, with the reason."""

_UNSEEN = {"event_log_handler": "null"}
"""Values of these that ask for nothing."""

# Names of settings, and the options that set them.
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

_TORCH_PATIENCE = 300.0
"""Seconds in which a process has imported torch and counted devices."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """torchrun's options for workers, and for their output."""
    workers = parser.add_argument_group("workers, with torchrun's flags")
    _add(workers, "--nproc-per-node", default="1", metavar="N", help="workers, or auto, gpu, xpu, npu, cpu")
    _add(workers, "--role", metavar="NAME", help="ROLE_NAME of this node's workers")
    workers.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    _add(workers, "--no-python", action="store_true", help="SCRIPT is a program that is no Python script")
    _add(workers, "--virtual-local-rank", action="store_true", help="each worker sees its own GPU alone, as number 0")
    _add(workers, "--shutdown-timeout", type=int, metavar="SECONDS", help="between SIGTERM and SIGKILL; 15")
    what = f"each near its GPU: {', '.join(get_args(Numa)[1:])}"
    _add(workers, "--numa-binding", metavar="HOW", help=what)
    what = "SIGUSR1, SIGUSR2, SIGHUP or SIGCONT among them are passed on to workers"
    _add(workers, "--signals-to-handle", default=",".join(_ALWAYS), metavar="NAME,...", help=what)
    what = "imported once for all workers; '' for fresh ones"
    workers.add_argument("--preload", default="torch", metavar="MODULE,...", help=what)
    output = parser.add_argument_group("their output, with torchrun's flags")
    what = "none, out, err or both go to files; by local rank: 0:out,1:both"
    output.add_argument("-r", "--redirects", default="none", metavar="WHAT", help=what)
    what = "none, out, err or both go to files and here"
    output.add_argument("-t", "--tee", default="none", metavar="WHAT", help=what)
    _add(output, "--log-dir", metavar="DIR", help="where the files are kept; in the run's directory if not given")
    _add(output, "--local-ranks-filter", default="", metavar="N,...", help="local ranks of which anything is seen here")
    for stream in ("stdout", "stderr"):
        what = f"lines of {stream} with one of these are kept in a file of their own; ,, is a comma"
        _add(output, f"--duplicate-{stream}-filters", default="", metavar="TEXT,...", help=what)
    for flag in ("--event-log-handler", "--logs-specs", "--start-method"):
        _add(parser, flag, help=argparse.SUPPRESS)
    _add(parser, "--monitor-interval", type=float, help=argparse.SUPPRESS)
    _add(parser, "--exit-barrier-timeout", type=float, help=argparse.SUPPRESS)
    _add(parser, "--run-path", action="store_true", help=argparse.SUPPRESS)


def _add(group: argparse._ActionsContainer, flag: str, **how: object) -> None:
    """An option in both of torchrun's spellings."""
    spellings = dict.fromkeys((flag, flag[:2] + flag[2:].replace("-", "_")))
    group.add_argument(*spellings, **how)  # type: ignore[arg-type]  # passed on


def take_defaults(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Let ``PET_NNODES`` be the default of ``--nnodes``, and so on, as under torchrun."""
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
        raise ConfigError(f"{name} is {text!r} in the environment; write {form}, or unset it") from None


def unneeded(args: argparse.Namespace) -> list[str]:
    """A line for each option that was given and has no effect here."""
    return [
        f"--{name.replace('_', '-')} is not needed: {why}"
        for name, why in _UNNEEDED.items()
        if getattr(args, name) not in (None, False, _UNSEEN.get(name))
    ]


def in_flags(message: str) -> str:
    """The message of a setting that is wrong, with the option that set it."""
    for setting, flag in _FLAGS.items():
        if message.startswith(f"{setting} "):
            return message.replace(setting, flag, 1)
    return message


def refuse(args: argparse.Namespace) -> None:
    """ConfigError for what cannot mean anything here, or contradicts itself."""
    if args.start_method not in (None, "spawn", "fork", "forkserver"):
        raise ConfigError(f"--start-method is {args.start_method!r}; write spawn, fork or forkserver, or leave it out")
    if args.logs_specs not in (None, "default"):
        raise ConfigError(
            f"--logs-specs is {args.logs_specs!r}, a class that needs torch, which no agent loads; leave it out, and "
            "use --log-dir, --redirects, --tee, --local-ranks-filter and --duplicate-stdout-filters"
        )
    if args.no_python and args.module and not args.run_path:
        raise ConfigError("--no-python runs a program and --module a Python module; leave one of them out")


def entrypoint(args: argparse.Namespace) -> Entrypoint:
    """What each worker runs. ConfigError if it is not there."""
    if not args.script:
        raise ConfigError("nothing to run: give a script, -m and a module, or --run-dir with a run's directory")
    given = tuple(args.script_args)
    if args.no_python and not args.run_path:
        if problem := program_problem(args.script, Path.cwd()):
            raise ConfigError(f"{args.script}: {problem}")
        return Entrypoint(program=args.script, args=given)
    if args.module and not args.run_path:
        return Entrypoint(module=args.script, args=given)
    if not Path(args.script).is_file():
        raise ConfigError(f"{Path(args.script).absolute()}: no such script")
    return Entrypoint(args.script, args=given)


def workers(args: argparse.Namespace) -> WorkerSettings:
    """The node's workers. Raises ConfigError, ValueError."""
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
    """Where their output goes. Raises ConfigError, ValueError."""
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
            raise ConfigError("--nproc-per-node is gpu, but this node has no GPU; give a number")
        return "auto"
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if text in ("xpu", "npu"):
        return _counted_by_torch(text)
    if not text.isdigit():
        raise ConfigError(f"--nproc-per-node is {text!r}; write a number, auto, gpu, xpu, npu or cpu")
    return int(text)


def _counted_by_torch(kind: str) -> int:
    """Devices of a kind that only torch can count, in a process of its own."""
    command = [sys.executable, "-c", _COUNT, kind]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TORCH_PATIENCE
    )
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]
    if done.returncode or not last.isdigit():
        raise ConfigError(f"--nproc-per-node is {kind}, but torch cannot count them: {last}; give a number")
    if not int(last):
        raise ConfigError(f"--nproc-per-node is {kind}, but torch sees none on this node; give a number")
    return int(last)


def _numa(text: str | None) -> Numa:
    for known in get_args(Numa):
        if known == (text or "none"):
            return known  # type: ignore[no-any-return]  # one of Numa
    raise ConfigError(f"--numa-binding is {text!r}; write {', '.join(get_args(Numa)[1:])}, or leave it out")


def _stop_grace(given: int | None) -> float:
    if given is not None:
        return given
    text = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    if text is None:
        return WorkerSettings.stop_grace
    if not text.isdigit():
        raise ConfigError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is {text!r} in the environment; write seconds, or unset it")
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
            form = "none, out, err or both, or what by local rank: 0:out,1:both"
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
    """Texts between commas, where two commas stand for one that belongs to a text."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")) if text else ()
