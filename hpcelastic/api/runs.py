"""Several runs of one job: a sweep over arguments or keys."""

import asyncio
import functools
import inspect
import itertools
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

from hpcelastic import values
from hpcelastic.api import steering
from hpcelastic.api.checks import check_entrypoint
from hpcelastic.api.jobs import end_jobs
from hpcelastic.api.launch import Job, resolve, start, warn
from hpcelastic.api.page import as_table
from hpcelastic.api.prepare import Call, run_paths
from hpcelastic.api.registry import known_runs, locate, runs_in, user_registry
from hpcelastic.api.run import Run
from hpcelastic.api.sharing import is_ours
from hpcelastic.api.status import RunStatus
from hpcelastic.config import JobConfig, overrides_from_keywords
from hpcelastic.errors import ConfigError, HpcElasticError
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

Point = Mapping[str, Any]
"""The parameters of one run of a sweep: keyword arguments of a function, or keys of a job."""

Points = Sequence[Point] | Mapping[str, Sequence[Any]]

_Start = tuple[JobConfig, Call | None, Point]


class Runs(Sequence[Run]):
    """Several runs with common methods: status, wait, results, cancel."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @classmethod
    def open(cls, name: str, *, runs: str | PathLike[str] = "runs") -> "Runs":
        """Open the runs NAME-000, NAME-001 … of an existing sweep, like `Run.open`. All are in one directory."""
        numbered = re.compile(re.escape(name) + r"-(\d{3,})")

        def number(run: str) -> int | None:
            return int(found[1]) if (found := numbered.fullmatch(run)) else None

        known = {place: run for run in known_runs(Path(runs)) if (place := number(run)) is not None}
        if not known:
            raise ConfigError(
                f"{name}: no such sweep; a run {name}-000 is neither in {runs} nor recorded for you; check the name"
            )
        directory = locate(known[min(known)], Path(runs)).parent.absolute()
        found = {place: run for run in runs_in(directory) if (place := number(run.name)) is not None}
        for place in known.keys() - found.keys():
            if user_registry().directory(known[place]) == directory / known[place]:
                locate(known[place], Path(runs))  # it explains why the run is missing
        return cls([Run(found[place]) for place in sorted(found)])

    def status(self) -> list[RunStatus]:
        return [run.status() for run in self._runs]

    def wait(self, timeout: float | None = None) -> list[RunStatus]:
        """Wait until all runs have ended with any result. Raises the first exception of `Run.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return [run.wait(_remaining(deadline)) for run in self._runs]

    def results(self, timeout: float | None = None, *, return_exceptions: bool = False) -> list[Any]:
        """Wait for all runs, then return the `Run.result` of each. With ``return_exceptions``, a RunFailed is an item.

        Without it, the RunFailed of the first failed run is raised. The results of the other runs stay on disk.
        """
        deadline, found = None if timeout is None else time.monotonic() + timeout, list[Any]()
        for run in self._runs:
            try:
                found.append(run.result(_remaining(deadline)))
            except HpcElasticError as error:
                found.append(error)
        if not return_exceptions and (failed := [one for one in found if isinstance(one, HpcElasticError)]):
            raise failed[0]
        return found

    def cancel(self) -> list[RunStatus]:
        """End all runs that have not ended, with their jobs. Raises SlurmError if SLURM does not answer."""
        readers = [run.reader for run in self._runs]
        for each in readers:
            steering.cancel(each)
        end_jobs(*(each for each in readers if is_ours(each.paths)))
        return self.status()

    def __await__(self) -> Generator[Any, None, list[RunStatus]]:
        """``await runs`` is `wait` for asyncio."""
        return asyncio.gather(*(run.wait_async() for run in self._runs)).__await__()

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        rows = [_row(run) for run in self._runs]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        return as_table([("run", "phase", "round", "point", "reason"), *map(_row, self._runs)])


def sweep(
    job: Job,
    points: Points,
    *,
    executor: Literal["slurm", "local"] = "slurm",
    profile: str | None = None,
    **overrides: Any,
) -> Runs:
    """Start a run for each of ``points`` with the names NAME-000, NAME-001 …, and return at once.

    If ``job`` is a function, a point contains keyword arguments of the function. Else it contains keys of the job, such
    as ``{"entrypoint.args": ["--lr", 0.1]}``. A mapping of lists instead of a list of points stands for all
    combinations of the values; the last key changes fastest. ``executor``, ``profile`` and ``overrides`` are those of
    `submit`, for all runs.

    All points are checked before the first run is started. If SLURM rejects a run nevertheless, the runs before it are
    cancelled, and the error names them.
    """
    deprecations: list[str] = []

    def resolved(keys: Point) -> JobConfig:
        return resolve(job, overrides_from_keywords({**overrides, **keys}), profile, deprecations.append)

    starts = _check_points(job, _as_list(points), resolved)
    warn((config for config, _, _ in starts), executor, deprecations)
    started: list[Run] = []
    for config, call, point in starts:
        try:
            started.append(start(config, call, executor=executor))
            _save_point(started[-1], point)
        except (HpcElasticError, OSError, KeyboardInterrupt) as error:
            raise type(error)(f"{config.run.name}: {error}; {_cancel_started(started)}") from error
    return Runs(started)


def _as_list(points: Points) -> list[Point]:
    if isinstance(points, Mapping):
        for key, choices in points.items():
            if isinstance(choices, str | Mapping) or not hasattr(choices, "__iter__"):
                raise ConfigError(f"{key} is {choices!r}; write a list of values for each key, such as [0.1, 1]")
        listed: list[Point] = [dict(zip(points, each, strict=True)) for each in itertools.product(*points.values())]
    else:
        listed = list(points)
    if not listed or not all(isinstance(point, Mapping) for point in listed):
        raise ConfigError(f"the points of the sweep are {points!r}; write a list of mappings, or a mapping of lists")
    return listed


def _check_points(job: Job, points: list[Point], resolved: Callable[[Point], JobConfig]) -> list[_Start]:
    """Return the configuration and the call of each run. Raises ConfigError if a run cannot be started."""
    starts: list[_Start] = []
    name = ""
    for number, point in enumerate(points):
        try:
            config = resolved({} if callable(job) else _keys(point))
            name = name or str(config.run.name)
            config = replace(config, run=replace(config.run, name=f"{name}-{number:03}"))
            starts.append((config, _call(job, point), point))
            check_entrypoint(config.entrypoint, Path.cwd())
            if run_paths(config).root.exists():
                raise ConfigError(
                    f"{run_paths(config).root}: exists already; set another name of the sweep with run__name="
                )
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"point {number}, {_label(point)}: {error}") from error
    return starts


def _keys(point: Point) -> Point:
    if {"run.name", "run__name"} & point.keys():
        raise ConfigError("run.name: a point cannot set the name of a run; set the name of the sweep with run__name=")
    return point


def _call(job: Job, point: Point) -> Call | None:
    if not callable(job):
        return None
    try:
        inspect.signature(job).bind(**point)
    except TypeError as error:
        raise ConfigError(f"{getattr(job, '__name__', job)}() does not accept these arguments: {error}") from error
    except ValueError:  # a C function without a signature
        pass
    function: Callable[..., Any] = functools.partial(job, **point)
    values.pickled_call(function, ())
    return function, ()


def _save_point(run: Run, point: Point) -> None:
    plain = {key: value if isinstance(value, str | int | float | bool) else repr(value) for key, value in point.items()}
    files.publish(RunPaths(run.directory).point, files.to_json(plain))


def _cancel_started(started: list[Run]) -> str:
    """Cancel the started runs of a sweep. Returns a description of the result."""
    if not started:
        return "nothing was started"
    names = started[0].name + (f" to {started[-1].name}" if len(started) > 1 else "")
    try:
        Runs(started).cancel()
    except (HpcElasticError, OSError) as error:
        return f"{names} were started, and not all could be cancelled ({error}); run: hpcelastic cancel NAME"
    return f"{names} were started and are cancelled; their directories remain in {started[0].directory.parent}"


def _row(run: Run) -> tuple[str, ...]:
    try:
        point = files.read_json(RunPaths(run.directory).point) or {}
        status = run.status()
    except (HpcElasticError, OSError) as error:  # a damaged run must not hide the others
        return run.name, "unreadable", "", "", str(error)
    return run.name, status.phase, str(status.round), _label(point), status.reason


def _label(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items())


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
