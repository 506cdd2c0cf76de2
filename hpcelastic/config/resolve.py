"""Resolve a job file or a mapping with overrides to a configuration, with the origin of each value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from hpcelastic.config.codec import encode
from hpcelastic.config.document import (
    Document,
    KeyPath,
    Mark,
    dotted,
    expand_nodes,
    from_plain,
    merge_defaults,
    raise_problems,
    rename_old_keys,
)
from hpcelastic.config.files import read_file, script_problem
from hpcelastic.config.job import JobConfig
from hpcelastic.config.overrides import Override, apply, check_names
from hpcelastic.config.site import Site
from hpcelastic.config.validation import validate


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the origin of each value."""

    config: JobConfig

    origins: Mapping[str, str]
    """Key path to ``default``, ``FILE:LINE``, ``profile NAME, FILE:LINE``, ``site, FILE:LINE``, ``override NUMBER``, or
    ``given`` for a Python value."""

    warnings: tuple[str, ...] = ()
    """A line for each key that is given under its old name."""


def load(
    path: str | PathLike[str],
    overrides: Sequence[Override] = (),
    *,
    profile: Document | None = None,
    site: Site | None = None,
    directory: Path | None = None,
) -> Resolved:
    """Read a job file, add the settings of a profile and of a site, and apply overrides.

    A relative script is searched in ``directory``, by default the working directory. Raises ConfigError with a line for
    each problem.
    """
    return _resolve(read_file(Path(path)), overrides, profile, site, directory)


def from_mapping(
    mapping: Mapping[str, object],
    overrides: Sequence[Override] = (),
    *,
    profile: Document | None = None,
    site: Site | None = None,
    directory: Path | None = None,
) -> Resolved:
    """Resolve a Python mapping with the keys of a job file, like `load`. Raises ConfigError."""
    document = Document()
    document.value = from_plain(mapping, (), Mark("given"), document)
    return _resolve(document, overrides, profile, site, directory)


def _resolve(
    document: Document,
    overrides: Sequence[Override],
    profile: Document | None,
    site: Site | None,
    directory: Path | None,
) -> Resolved:
    expand_nodes(document)
    rename_old_keys(document)
    for below in (profile, None if site is None else site.defaults):
        if below is not None:
            expand_nodes(below)
            rename_old_keys(below)
            document.problems += below.problems
            document.warnings += below.warnings
            merge_defaults(document, below)
    check_names(document, overrides)
    for number, override in enumerate(overrides, 1):
        apply(document, number, override)
    config = validate(document)
    _check_script(document, directory or Path())
    if site is not None and config is not None:
        site.check(config, document)
    raise_problems(document)
    assert config is not None, "an invalid configuration has a problem"
    origins = {dotted(path): _origin(document, path) for path in leaves(encode(config))}
    return Resolved(config, origins, tuple(map(str, document.warnings)))


def _check_script(document: Document, directory: Path) -> None:
    entrypoint = document.value.get("entrypoint")
    script = entrypoint.get("script") if isinstance(entrypoint, dict) else None
    if isinstance(script, str) and script and (what := script_problem(script, directory)):
        document.add_problem(("entrypoint", "script"), what)


def _origin(document: Document, path: KeyPath) -> str:
    return document.marks[path].origin if path in document.marks else "default"


def leaves(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every key without keys below it. A list is one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path
