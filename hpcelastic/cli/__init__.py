"""The command line: one module for each command, imported on demand."""

import argparse
import difflib
import gc
import importlib
import os
import sys
import threading
from typing import NamedTuple

from hpcelastic import __version__
from hpcelastic.cli.parser import Parser
from hpcelastic.errors import ConfigError, HpcElasticError
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.errnos import advice


class Command(NamedTuple):
    """A command. The module ``hpcelastic.cli.NAME`` has its ``add_arguments(parser)`` and its ``run(args) -> int``."""

    summary: str
    timeout: float | None = None
    """Seconds for a command that reads a run; None if the command has time-outs of its own. Such a command runs in a
    separate thread, because a call to a filesystem that hangs cannot be interrupted, and Ctrl-C must still work."""


COMMANDS = {
    "init": Command("write a job file, a batch script and a training script to start from"),
    "run": Command("run a job file on this machine"),
    "submit": Command("submit a job file to SLURM"),
    "sbatch": Command("print the batch script of submit"),
    "agent": Command("run one node of a run (with the options of torchrun)"),
    "status": Command("show the status of a run", timeout=60.0),
    "logs": Command("show the workers' output", timeout=threading.TIMEOUT_MAX),
    "why": Command("explain why a round or a run has ended", timeout=60.0),
    "goodput": Command("show what the time of a run's nodes went into", timeout=60.0),
    "report": Command("write a report of a run as one HTML file", timeout=60.0),
    "top": Command("show runs in a live table"),
    "metrics": Command("print or serve metrics of runs for Prometheus"),
    "list": Command("list the runs in a directory", timeout=60.0),
    "clean": Command("show what old runs take on the filesystem, and remove them", timeout=threading.TIMEOUT_MAX),
    "cancel": Command("end a run and cancel its SLURM jobs", timeout=60.0),
    "scale": Command("change the number of nodes of a run", timeout=120.0),
    "drain": Command("remove a node from a run", timeout=60.0),
    "checkpoint": Command("let a run save a checkpoint now and continue", timeout=60.0),
    "stacks": Command("show what the workers of a run do now", timeout=threading.TIMEOUT_MAX),
    "forgive": Command("allow nodes again after incidents", timeout=60.0),
    "nodes": Command("show the record of bad nodes that several users share", timeout=60.0),
    "config": Command("check a job file and show the resolved configuration"),
    "doctor": Command("check nodes, and the filesystem of a directory"),
    "completion": Command("print the completion of commands and options for a shell"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns 0 on success, 1 if the run failed, 2 if the input was wrong."""
    _open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    try:
        return _run(name, arguments[1:]) if name else _no_command(arguments)
    except HpcElasticError as error:
        print(f"hpcelastic {name}".rstrip() + f": {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has exited: `hpcelastic logs RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"hpcelastic {name}: {where}{error.strerror or error}; {advice(error.errno)}", file=sys.stderr)
        return 1


def _open_closed_streams() -> None:
    """Connect each standard stream that was closed at the start (``>&-``) to /dev/null, also for child processes.

    Otherwise the stream would be None, and the next file would get its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is the one that was closed
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode))


def _run(name: str, arguments: list[str]) -> int:
    gc.disable()  # imports create no garbage, and collecting takes a thirtieth of an agent's start
    module = importlib.import_module(f"hpcelastic.cli.{name}")
    gc.freeze()
    gc.enable()
    parser = Parser(prog=f"hpcelastic {name}", description=as_sentence(COMMANDS[name].summary))
    module.add_arguments(parser)
    # Options are allowed between overrides. All that follows a script or an action belongs to it.
    parse = parser.parse_args if name in ("agent", "config") else parser.parse_intermixed_args
    args = parse(arguments)
    timeout = COMMANDS[name].timeout
    if timeout is None or getattr(args, "watch", False):  # the display has time-outs of its own
        return int(module.run(args))
    return bounded(lambda: int(module.run(args)), timeout, "the directory of the run")


def _no_command(arguments: list[str]) -> int:
    """Print the help or the version, or raise ConfigError."""
    parser = Parser(prog="hpcelastic", description="Elastic, fault-tolerant PyTorch training on SLURM clusters.")
    parser.add_argument("--version", action="version", version=f"hpcelastic {__version__}")
    commands: argparse._SubParsersAction[Parser] = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    if arguments and not arguments[0].startswith("-"):
        close = difflib.get_close_matches(arguments[0], COMMANDS, 1)
        remedy = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"{arguments[0]}: no such command; {remedy}")
    parser.parse_args(arguments)
    raise ConfigError("write the command first; see hpcelastic --help")


def as_sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
