"""Checks of what a run would start, before anything is started."""

import ast
import importlib.util
import sys
from pathlib import Path

from hpcelastic.agent.settings import Entrypoint
from hpcelastic.errors import ConfigError


def check_entrypoint(entrypoint: Entrypoint, directory: Path) -> None:
    """ConfigError if the script, module or function can't be started in ``directory``, as far as reading it tells."""
    if entrypoint.script:
        _parse(directory / entrypoint.script)
    elif entrypoint.module:
        _check_module(entrypoint.module, directory, "entrypoint.module")
    elif entrypoint.function:
        _check_function(entrypoint.function, directory)


def _check_function(spec: str, directory: Path) -> None:
    module, _, name = spec.partition(":")
    source = _check_module(module, directory, "entrypoint.function")
    if source is None:
        return
    tree = _parse(source)
    defined = {target for node in ast.walk(tree) for target in _defined_by(node)}
    if name not in defined and not any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in tree.body):
        raise ConfigError(f"entrypoint.function is {spec!r}, but {source} defines no {name!r}")


def _check_module(module: str, directory: Path, key: str) -> Path | None:
    """The module's source file, if it has one."""
    sys.path.insert(0, str(directory))
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.remove(str(directory))
    if found is None:
        raise ConfigError(f"{key}: there is no module {module!r}, neither installed in {sys.prefix} nor in {directory}")
    source = Path(found.origin or "")
    return source if source.suffix == ".py" else None


def _parse(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes(), filename=str(source))
    except SyntaxError as error:
        raise ConfigError(
            f"{source}:{error.lineno}: {error.msg}; correct it before it is started on many nodes"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from error


def _defined_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []
