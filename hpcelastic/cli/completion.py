"""``hpcelastic completion``: print the completion of commands and options for a shell."""

import argparse
import importlib

import shtab

from hpcelastic.cli import COMMANDS, as_sentence
from hpcelastic.cli.parser import Parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", metavar="SHELL", choices=shtab.SUPPORTED_SHELLS, help=", ".join(shtab.SUPPORTED_SHELLS)
    )


def run(args: argparse.Namespace) -> int:
    print(shtab.complete(whole_parser(), args.shell))
    return 0


def whole_parser() -> Parser:
    """Return a parser of all commands with all their options."""
    parser = Parser(prog="hpcelastic", description="Elastic, fault-tolerant PyTorch training on SLURM clusters.")
    parser.add_argument("--version", action="store_true", help="show the version of hpcelastic")
    parsers: argparse._SubParsersAction[Parser] = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        added = parsers.add_parser(name, help=command.summary, description=as_sentence(command.summary))
        importlib.import_module(f"hpcelastic.cli.{name}").add_arguments(added)
    return parser
