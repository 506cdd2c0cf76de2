"""Options of other commands, passed verbatim. Pure: plain values."""

import re
from collections.abc import Mapping

Option = str | int | bool | tuple[str | int, ...]
"""``true`` is a flag without a value, ``false`` omits the option, a list is joined with commas."""

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


def check_options(key: str, options: Mapping[str, Option], of: str) -> None:
    """Raise ValueError if the values of ``key`` are not valid options of the command ``of``."""
    for name, value in options.items():
        if len(name) < 2 or not NAME.fullmatch(name):
            fitting = name.lstrip("-").replace("_", "-").lower()
            example = fitting if len(fitting) > 1 and NAME.fullmatch(fitting) else "mail-type"
            raise ValueError(f"{key}.{name} is not a long option of {of}; write its full name, such as {example}")
        for part in value if isinstance(value, tuple) else (value,):
            check_text(f"{key}.{name}", part)


def check_text(key: str, value: object) -> None:
    """Raise ValueError if sbatch would change the value: it reads a script by lines, and drops backslashes."""
    if isinstance(value, str) and (found := UNSAFE.search(value)):
        raise ValueError(f"{key} is {value!r}; sbatch accepts no line break, tab or backslash; remove {found[0]!r}")


def flags(options: Mapping[str, Option]) -> dict[str, str | int | bool]:
    """Return the options that are set, with lists joined by commas. An empty list sets nothing."""
    given = {name: value for name, value in options.items() if value is not False and value != ()}
    return {name: ",".join(map(str, v)) if isinstance(v, tuple) else v for name, v in given.items()}


def as_words(options: Mapping[str, str | int | bool]) -> list[str]:
    """Return the options as words of a command line."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
