"""The argument parser of all commands: an error is a ConfigError of one line, with what to do next."""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hpcelastic.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (-[\w-]+)", message)
        raise ConfigError(f"{message}; {self._remedy(unknown[1] if unknown else '')}")

    def _remedy(self, unknown: str) -> str:
        """Return what to do about an unknown option."""
        from hpcelastic.config.keys import ALIASES

        key = ALIASES.get(unknown.lstrip("-").replace("-", "_"))
        if key and self.prog.split()[-1] in ("run", "submit", "sbatch"):
            return f"write {key}=VALUE after the job file; only hpcelastic agent takes the options of torchrun"
        close = difflib.get_close_matches(unknown, self._option_string_actions, 1, 0.7)
        return f"did you mean {close[0]}?" if close else f"see {self.prog} --help"


def number_of(unit: str, *, or_zero: bool = False) -> Callable[[str], float]:
    """Return the ``type`` of an argument: a finite number of ``unit`` more than 0, or with ``or_zero`` also 0."""
    least = "0 or more" if or_zero else "more than 0"

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
            raise argparse.ArgumentTypeError(f"write a number of {unit}, {least}, not {text!r}")
        return value

    return number


class RenamedFlag(argparse.Action):
    """The old name of a flag, hidden in the help. It sets the new flag and prints a warning to stderr."""

    def __init__(self, option_strings: list[str], dest: str, new_name: str, **_: Any) -> None:
        dest = new_name.lstrip("-").replace("-", "_")
        super().__init__(option_strings, dest, nargs=0, default=False, help=argparse.SUPPRESS)
        self._new_name = new_name

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, _: Any, option: str | None = None
    ) -> None:
        print(
            f"{parser.prog}: {option} is the old name of {self._new_name}; write {self._new_name} instead",
            file=sys.stderr,
        )
        setattr(namespace, self.dest, True)
