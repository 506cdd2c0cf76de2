"""A command line's own errors, said as all our errors are: one line, with the remedy."""

import argparse
import difflib
import re
from typing import NoReturn

from hpcelastic.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """argparse's parser, which raises ConfigError instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (-[\w-]+)", message)
        raise ConfigError(f"{message}; {self._remedy(unknown[1] if unknown else '')}")

    def _remedy(self, unknown: str) -> str:
        """What to write in place of an option that there is not."""
        from hpcelastic.config.keys import ALIASES

        key = ALIASES.get(unknown.lstrip("-").replace("-", "_"))
        if key and self.prog.split()[-1] in ("run", "submit", "sbatch"):
            return f"give the key {key}=VALUE after the job file; options as torchrun's go with hpcelastic agent"
        close = difflib.get_close_matches(unknown, self._option_string_actions, 1, 0.7)
        return f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
