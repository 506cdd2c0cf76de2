"""The origin of a run, in its directory: the state of the code, the packages, and a copy of the code.

Each submission has a directory of its own, so a run that is continued keeps what its earlier jobs have run.
"""

import functools
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcelastic.api.registry import DRAFT, REMOVED, sees_run
from hpcelastic.config import JobConfig
from hpcelastic.errors import ConfigError
from hpcelastic.storage import files, modes
from hpcelastic.storage.foreign import this_user
from hpcelastic.storage.paths import RunPaths

GIT = "git"
"""In ``run.code``: all files of the working tree that git does not ignore."""

_GIT_TIMEOUT = 10.0
"""Seconds for one command of git. A working tree on a slow filesystem takes long to compare."""

_FRESH = 10.0
"""Seconds for which the state of the code counts as the present one."""

_INSTALLED = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist-info|egg-info)")

_MAX_DIFF = 2**20
"""Bytes of the differences from the commit that are kept."""

_MAX_CHANGED = 100
"""Names of changed files that are kept."""

_NO_CODE = {".git", "__pycache__"}

_MAX_FILES, _MAX_BYTES = 20_000, 2**30
"""Limits for copies of the code, because a shared filesystem has quotas."""


def record_submission(paths: RunPaths, final: RunPaths, config: JobConfig, directory: Path) -> JobConfig:
    """Record what the job in ``directory`` is submitted from. Return the job with the copy of its code.

    ``paths`` is the directory of the run as long as it is created; afterwards its name is ``final``. Raises ConfigError
    if the code cannot be copied.
    """
    number = len(submissions(paths)) + 1
    target = paths.submission(number)
    files.make_directory(target)
    script = config.entrypoint.script
    facts = _facts((directory / script).parent if script else directory, int(time.monotonic() / _FRESH))
    document = {
        "time": time.time(),
        "user": this_user(),
        "host": socket.gethostname(),
        "directory": str(directory),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": facts.packages,
        "repository": facts.repository,
        "code": list(config.run.code),
    }
    files.publish(target / "provenance.json", files.to_json(document))
    if facts.diff:
        files.publish(target / "changes.diff", facts.diff[:_MAX_DIFF])
    if not config.run.code:
        return config
    root = _root(config.run.code, directory)
    runs = paths.root.parent
    own = paths.root if _below(root, runs) is not None else runs  # never a part of the code
    in_run = _run_finder(root)
    chosen = (
        path
        for path in _chosen(config.run.code, directory, root)
        if _below(path, own) is None and not in_run(path.parent)
    )
    _copy(_checked(chosen), root, target / "code")
    return _with_copied_code(config, directory, root, target / "code", final.submission(number) / "code")


def submissions(paths: RunPaths) -> list[int]:
    """Return the numbers of the submissions of a run, in order."""
    return sorted(int(name) for name in files.names(paths.submissions) if name.isdecimal())


def provenance(paths: RunPaths) -> list[dict[str, Any]]:
    """Return what is recorded of each submission, in order. A damaged record is left out."""
    found = [files.read_json(paths.submission(number) / "provenance.json") for number in submissions(paths)]
    return [each for each in found if isinstance(each, dict)]


class _Facts(NamedTuple):
    """The state of the code and of the environment."""

    packages: dict[str, str]
    repository: dict[str, Any] | None
    diff: bytes


@functools.lru_cache(maxsize=1)
def _facts(place: Path, period: int) -> _Facts:
    """Return the facts about ``place``. They are found once in each ``period``, and not for each run of a sweep."""
    repository, diff = _repository(place), b""
    if repository is not None:
        diff = _git(place, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD") or b""
        repository["diff_bytes"] = len(diff)
    return _Facts(_packages(), repository, diff)


def _repository(place: Path) -> dict[str, Any] | None:
    """Return the state of the git repository at ``place``; None if there is none, or no git."""
    root, commit = _git(place, "rev-parse", "--show-toplevel"), _git(place, "rev-parse", "--verify", "HEAD")
    if root is None or commit is None:
        return None
    status = (_git(place, "status", "--porcelain", "--untracked-files=normal") or b"").decode(errors="replace")
    changed = status.splitlines()
    return {
        "root": root.decode(errors="replace").strip(),
        "commit": commit.decode().strip(),
        "branch": (_git(place, "rev-parse", "--abbrev-ref", "HEAD") or b"").decode(errors="replace").strip(),
        "changed": changed[:_MAX_CHANGED],
        "changed_files": len(changed),
    }


def _git(place: Path, *arguments: str) -> bytes | None:
    """Return the output of git; None if it fails. No hook and no file monitor is started."""
    command = ["git", "-C", str(place), "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _packages() -> dict[str, str]:
    """Return the versions of all installed packages, from the names of their directories.

    Source: "Recording installed projects", PyPA specifications. To read each file takes a hundred times longer.
    """
    found: dict[str, str] = {}
    for directory in filter(os.path.isdir, sys.path):
        for match in filter(None, map(_INSTALLED.fullmatch, os.listdir(directory))):
            found.setdefault(match[1], match[2])
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


# The copy of the code


def _with_copied_code(config: JobConfig, directory: Path, root: Path, target: Path, final: Path) -> JobConfig:
    """Return the job that runs the copy of ``root`` in ``target``, whose path will be ``final``."""
    assert config.entrypoint.script is not None
    script = _below(directory / config.entrypoint.script, root)
    if script is None or not (target / script).is_file():
        raise ConfigError(
            f"run.code does not contain the script {config.entrypoint.script}; add its directory to run.code"
        )
    environment = {**config.environment, "PYTHONPATH": _search_path(config.environment, root, target, final)}
    return replace(
        config,
        entrypoint=replace(config.entrypoint, script=str(final / script)),
        environment={name: value for name, value in environment.items() if value},
    )


def _root(code: Sequence[str], directory: Path) -> Path:
    """Return the directory that the copy represents."""
    if GIT not in code:
        return directory
    found = _git(directory, "rev-parse", "--show-toplevel")
    if found is None:
        raise ConfigError(f"run.code is {GIT}, and {directory} is in no git repository; name files and directories")
    return Path(found.decode().strip())


def _chosen(code: Sequence[str], directory: Path, root: Path) -> Iterator[Path]:
    for name in code:
        path = directory / name
        if name == GIT:
            listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or b""
            yield from (root / os.fsdecode(each) for each in listed.split(b"\0") if each)
        elif path.is_dir():
            yield from (each for each in sorted(path.rglob("*")) if not _NO_CODE & {*each.parts})
        elif path.exists():
            yield path
        else:
            raise ConfigError(f"run.code: {path} does not exist; correct the name")


def _run_finder(root: Path) -> Callable[[Path], bool]:
    """Return a function that tells whether a directory below ``root`` is that of a run, or is part of one."""

    @functools.cache
    def in_run(directory: Path) -> bool:
        if directory == root or root not in directory.parents:
            return False
        return directory.name.startswith((DRAFT, REMOVED)) or sees_run(directory) or in_run(directory.parent)

    return in_run


def _checked(chosen: Iterator[Path]) -> Iterator[Path]:
    """Yield the files. Raises ConfigError if they are too many or too large."""
    size = count = 0
    for path in chosen:
        if path.is_symlink() or path.is_file():
            length = 0 if path.is_symlink() else path.stat().st_size
            size, count = size + length, count + 1
            if count > _MAX_FILES or size > _MAX_BYTES:
                raise ConfigError(
                    f"run.code has more than {_MAX_FILES:,} files or {_MAX_BYTES >> 20} MiB, at {path}; "
                    "name only the code, not data"
                )
            yield path


def _copy(chosen: Iterator[Path], root: Path, target: Path) -> None:
    for path in chosen:
        relative = _below(path, root)
        if relative is None:
            raise ConfigError(f"run.code: {path} is not in {root}; submit from a directory that contains it")
        copy = target / relative
        files.make_directory(copy.parent)
        shutil.copy2(path, copy, follow_symlinks=False)
        if modes.is_shared(copy.parent) and not copy.is_symlink():
            _share(copy)


def _share(copy: Path) -> None:
    """Let the group read a file, and start it if the owner can. Only the owner can change it."""
    owner = copy.stat().st_mode & stat.S_IRWXU
    copy.chmod(owner | (owner & ~stat.S_IWUSR) >> 3)


def _search_path(environment: Mapping[str, str], root: Path, target: Path, final: Path) -> str:
    """Return PYTHONPATH for the workers: the copies of directories from which this process imports come first."""
    given = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    entries = [*filter(None, given.split(os.pathsep)), *filter(None, sys.path)]
    copied = [below for each in entries if (below := _below(Path(each), root)) and (target / below).is_dir()]
    return os.pathsep.join([*dict.fromkeys(str(final / below) for below in copied), *filter(None, [given])])


def _below(path: Path, root: Path) -> Path | None:
    """Return the path relative to ``root``; None if it is not below it."""
    try:
        return Path(os.path.realpath(path.parent)).joinpath(path.name).relative_to(os.path.realpath(root))
    except ValueError:
        return None
