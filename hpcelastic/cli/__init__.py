"""The command line: one module for each command, imported only when it is asked for."""

import argparse
import importlib
import os
import sys

from hpcelastic import __version__
from hpcelastic.errors import HpcElasticError

COMMANDS = {
    "run": "run a job file on this machine",
    "submit": "submit a job file to SLURM",
    "sbatch": "print what submit would submit",
    "agent": "take part in a run as one node (flags as torchrun's)",
    "status": "show how a run is doing",
    "logs": "show the workers' output",
    "list": "list the runs in a directory",
    "cancel": "end a run and its SLURM jobs",
    "config": "check a job file and show what it means",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 0 on success, 1 if the run failed, 2 if the input was wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="hpcelastic", description="Elastic, fault-tolerant PyTorch training on SLURM clusters."
    )
    parser.add_argument("--version", action="version", version=f"hpcelastic {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            module = importlib.import_module(f"hpcelastic.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args))
    except HpcElasticError as error:
        print(f"hpcelastic {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `hpcelastic logs RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
