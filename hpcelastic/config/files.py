"""Read a job file, and explain why it cannot be read."""

import difflib
import os
from pathlib import Path

import yaml

from hpcelastic.config.document import Document, Mark
from hpcelastic.config.yaml_reader import explain, read_yaml
from hpcelastic.errors import ConfigError

EXAMPLE = "entrypoint: {script: train.py}"


def exists(path: Path) -> bool:
    """Return whether a file exists. What this user may not see does not. After any other error it may.

    `os.path.exists` hides errors, and a job would be submitted without the defaults in the file.
    """
    try:
        os.stat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError)
    return True


def read_document(path: Path) -> Document:
    """Read a YAML file with any content. Raises ConfigError if it is not valid YAML or cannot be read."""

    def marker(line: int, text: str | None) -> Mark:
        return Mark(f"{path}:{line}", f"{path}:{line}", line=line, text=text)

    document = Document()
    try:
        document.value = read_yaml(_text(path), (), marker, document)
    except yaml.YAMLError as error:
        line, column, what = explain(error)
        raise ConfigError(f"{path}:{line}:{column}: {what}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested without end; remove the alias inside its own anchor") from error
    return document


def read_file(path: Path) -> Document:
    """Read a job file. Raises ConfigError if it contains no keys."""
    document = read_document(path)
    if document.value is None:
        raise ConfigError(f"{path}: is empty; write at least an entry point, such as {EXAMPLE}")
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{document.mark(()).place}: has {'a list' if isinstance(document.value, list) else 'text'}, not keys; "
            f"write lines KEY: VALUE, with a space after the colon, such as {EXAMPLE}"
        )
    return document


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{path}: no such file; {_suggestion(path, job_files(path.parent))}") from error
    except IsADirectoryError as error:
        names = ", ".join(job_files(path)[:5])
        raise ConfigError(
            f"{path}: is a directory; write a job file{f' in it: {names}' if names else ', such as job.yaml'}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; check its permissions and its filesystem"
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text; save the file as UTF-8") from error


def job_files(directory: Path) -> list[str]:
    """Return the names of the YAML files in a directory, or nothing if it cannot be read."""
    try:
        return sorted(entry.name for entry in directory.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        return []


def _suggestion(path: Path, names: list[str]) -> str:
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    if close := difflib.get_close_matches(path.name, names, 1, 0.5):
        return f"did you mean {path.parent / close[0]}?"
    return (
        f"the job files there are {', '.join(names[:5])}"
        if names
        else f"there is no YAML file in {path.parent.absolute()}"
    )


def script_problem(script: str, directory: Path) -> str | None:
    """Return the problem with the script, or None. A relative path is searched in ``directory``."""
    path = (directory / script).absolute()
    if path.is_file():
        return None
    if path.is_dir():
        return f"{path} is a directory; write a Python file, or use entrypoint.module for a package"
    names = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1, 0.5)
    remedy = (
        f"did you mean {Path(script).parent / close[0]}?"
        if close
        else "a relative path starts at the working directory"
    )
    return f"there is no file {path}; {remedy}"
