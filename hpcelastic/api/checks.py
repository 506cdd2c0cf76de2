"""Check the entry point of a run before the run is started."""

import ast
import difflib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from hpcelastic.agent.commands import program_problem
from hpcelastic.agent.settings import Entrypoint
from hpcelastic.config import JobConfig
from hpcelastic.errors import ConfigError


def check_job(config: JobConfig, directory: Path) -> None:
    """Raise ConfigError if the job's entry point cannot be started in ``directory``, or an exporter cannot be loaded.

    Skips modules in a container.
    """
    in_container = config.slurm.container.image is not None
    if config.entrypoint.script or not in_container:
        check_entrypoint(config.entrypoint, directory)
    for name in () if in_container else config.exporters:
        _check_function(name, directory, "exporters")


def check_entrypoint(entrypoint: Entrypoint, directory: Path) -> None:
    """Raise ConfigError if the entry point cannot be started in ``directory``, as far as its source shows."""
    if entrypoint.script:
        _parse(directory / entrypoint.script)
    elif entrypoint.module:
        _check_module(entrypoint.module, directory)
    elif entrypoint.function:
        _check_function(entrypoint.function, directory, "entrypoint.function")
    elif entrypoint.program and (problem := program_problem(entrypoint.program, directory)):
        raise ConfigError(f"entrypoint.program: {problem}")


def _check_function(spec: str, directory: Path, key: str) -> None:
    module, _, name = spec.partition(":")
    found = _find_module(module, directory, key)
    source = Path(found.origin or "")
    if source.suffix != ".py":
        return
    tree = _parse(source)
    defined = {target for node in ast.walk(tree) for target in _defined_by(node)}
    if not defined & {name, "*", "__getattr__"}:
        close = difflib.get_close_matches(name, defined, 1)
        remedy = f"did you mean {module}:{close[0]}?" if close else "write package.module:function"
        raise ConfigError(f"{key} is {spec!r}, but {source} defines no {name!r}; {remedy}")


def _check_module(module: str, directory: Path) -> None:
    """Check a module, or ``__main__`` of a package."""
    found = _find_module(module, directory, "entrypoint.module")
    if found.submodule_search_locations is not None:
        found = _find_module(f"{module}.__main__", directory, "entrypoint.module")
    if found.origin and found.origin.endswith(".py"):
        _parse(Path(found.origin))


def _find_module(module: str, directory: Path, key: str) -> ModuleSpec:
    """Find a module like a worker that starts in ``directory``. Imports the parent packages of the module."""
    sys.path.insert(0, str(directory))
    try:
        found = importlib.util.find_spec(module)
    except Exception as error:  # a user's package can raise anything on import
        if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{key}: the package of {module!r} cannot be imported ({what}); correct it") from error
        found = None
    finally:
        sys.path.remove(str(directory))
    if found is None:
        raise ConfigError(
            f"{key}: there is no module {module!r} in {sys.prefix} or in {directory}; install it, or correct the name"
        )
    return found


def _parse(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes(), filename=str(source))
    except SyntaxError as error:
        place = f"{source}:{error.lineno}" if error.lineno else source
        raise ConfigError(f"{place}: {error.msg}; correct the file") from error
    except ValueError as error:
        raise ConfigError(f"{source}: is not Python source: {error}; check the path") from error
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}; check its path and its permissions") from error


def _defined_by(node: ast.AST) -> list[str]:
    """Return the names that a statement defines; ``*`` for ``from module import *``."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []
