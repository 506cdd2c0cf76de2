"""The file of a site: default settings for the jobs of all users, and limits. Administrators write it.

::

    defaults: {slurm: {partition: gpu}, run: {directory: /scratch/runs}}
    limits: {nodes.max: 64, slurm.max_requeues: 20, run.total_time: 14-00:00:00}
    submit_from_nodes: false

It spares users from errors. It is no barrier: users who want to exceed a limit can call SLURM's commands themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcelastic.agent.settings import Entrypoint
from hpcelastic.config.codec import encode
from hpcelastic.config.document import Document, raise_problems
from hpcelastic.config.files import exists, read_document
from hpcelastic.config.job import JobConfig
from hpcelastic.config.slurm import TIME, minutes

DEFAULT_PATH = Path("/etc/hpcelastic/site.yaml")
VARIABLE = "HPCELASTIC_SITE_CONFIG"
"""The environment variable with the path of another file. If it is empty, there is none."""

_TIMES = ("slurm.time", "run.total_time")
_REFILL = ("slurm", "refill")
_DEPTH = 2
"""The number of names in a key that may have a limit."""


@dataclass(frozen=True)
class Site:
    """The content of the file."""

    path: Path
    defaults: Document
    limits: Mapping[str, int | float | str]
    submits_from_nodes: bool
    """Whether agents may submit jobs from compute nodes."""

    def check(self, config: JobConfig, document: Document) -> None:
        """Add a problem for each value of a job that is beyond a limit."""
        values = encode(config)
        for key in self.limits:
            if problem := self.find_problem(key, _value(values, _path(key))):
                document.add_problem(_path(key), problem)
        if not self.submits_from_nodes and config.slurm.refill:
            what = f"is {config.slurm.refill:g}; this site allows no submission from compute nodes ({self.path})"
            document.add_problem(_REFILL, f"{what}; remove it")

    def find_problem(self, key: str, value: Any) -> str:
        """Describe why the site does not allow a value of a key, such as ``nodes.max``; empty if it does."""
        limit = self.limits.get(key)
        is_beyond = limit is not None and _is_beyond(key, value, limit)
        return f"is {value}; this site allows at most {limit} ({self.path})" if is_beyond else ""


def read_site(environ: Mapping[str, str]) -> Site | None:
    """Return the file of this site; None if there is none. Raises ConfigError with a line for each problem."""
    given = environ.get(VARIABLE)
    path = DEFAULT_PATH if given is None else Path(given)
    if given == "" or (given is None and not exists(path)):
        return None
    document = read_document(path)
    content = document.value = {} if document.value is None else document.value
    if not isinstance(content, dict):
        document.add_problem((), "contains no keys; write defaults: {KEY: VALUE} and limits: {KEY: VALUE}")
        raise_problems(document)
    known = {"defaults": dict, "limits": dict, "submit_from_nodes": bool}
    for key in content.keys() - known.keys():
        document.add_problem((key,), f"no such key; the keys here are {', '.join(known)}")
    for key, kind in known.items():
        if not isinstance(content.get(key, kind()), kind):
            what = "true or false" if kind is bool else "lines KEY: VALUE below it"
            document.add_problem((key,), f"is {content[key]!r}; write {what}")
    raise_problems(document)
    limits = content.get("limits", {})
    plain = encode(JobConfig(entrypoint=Entrypoint(script="train.py")))
    _check_limits(limits, plain, document)
    submits = content.get("submit_from_nodes", True)
    lower = {key: limit for key, limit in limits.items() if _is_beyond(key, _value(plain, _path(key)), limit)}
    return Site(path, _defaults(document, lower, submits), limits, submits)


def _check_limits(limits: Mapping[str, Any], plain: Mapping[str, Any], document: Document) -> None:
    for key, limit in limits.items():
        value = _value(plain, _path(key))
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if key in _TIMES:
            if not TIME.fullmatch(str(limit)):
                document.add_problem(("limits", key), f"is {limit!r}; write MINUTES, HH:MM:SS or D-HH:MM:SS")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or len(_path(key)) != _DEPTH:
            document.add_problem(
                ("limits", key), "is no key of a job with a number; write GROUP.KEY, such as nodes.max"
            )
        elif not is_number:
            document.add_problem(("limits", key), f"is {limit!r}; write a number")
    raise_problems(document)


def _defaults(document: Document, lower: Mapping[str, Any], submits_from_nodes: bool) -> Document:
    """Return the job keys as a document, with marks that name the site.

    ``lower`` has the limits that are below the default of a job. They are the defaults then.
    """
    marks = {
        path[1:]: replace(mark, origin=f"site, {mark.origin}")
        for path, mark in document.marks.items()
        if path[:1] == ("defaults",)
    }
    found = Document(document.value.get("defaults", {}), marks)
    values: dict[tuple[str, ...], tuple[Any, tuple[str, ...]]]
    values = {_path(key): (limit, ("limits", key)) for key, limit in lower.items()}
    if not submits_from_nodes:
        values[_REFILL] = 0, ("submit_from_nodes",)
    for (group, key), (value, place) in values.items():
        keys = found.value.setdefault(group, {})
        if isinstance(keys, dict) and (key not in keys or (group, key) == _REFILL):
            keys[key] = value
            found.marks[group, key] = replace(document.mark(place), origin=f"site, {document.mark(place).origin}")
    return found


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _value(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = values
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_beyond(key: str, value: Any, limit: Any) -> bool:
    if value is None:
        return False
    if key not in _TIMES:
        return isinstance(value, (int, float)) and value > limit
    wanted, allowed = minutes(str(value)), minutes(str(limit))
    return allowed is not None and (wanted is None or wanted > allowed)
