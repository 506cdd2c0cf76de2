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
        close = difflib.get_close_matches(unknown[1], self._option_string_actions, 1, 0.7) if unknown else []
        raise ConfigError(f"{message}; " + (f"did you mean {close[0]}?" if close else f"see {self.prog} --help"))
