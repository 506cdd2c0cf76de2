"""The directory of the workers' logs, and copies of the logs.

A log is copied to the agent's own output, each line with a prefix. Lines with certain texts are copied to a file.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

from hpcelastic.agent.settings import LogSettings
from hpcelastic.errors import ConfigError
from hpcelastic.storage import files
from hpcelastic.storage.home import expand_home
from hpcelastic.storage.paths import RunPaths

_POLL_INTERVAL = 0.2
"""Seconds between two polls of the logs."""

_LAST_POLL_TIMEOUT = 5.0
"""Seconds that the last poll of the logs may take. Lines that are not copied by then remain in the logs."""


_Copy: TypeAlias = tuple[str, TextIO | Path, Sequence[str]]
"""A prefix, the destination of lines, and the texts of which a line must contain one."""


def make_logs(paths: RunPaths, settings: LogSettings) -> None:
    """Make the directory for logs on this node: in the run's directory, or elsewhere with a link to it.

    Raises ConfigError if the run already keeps its logs in another place.
    """
    if settings.directory is None:
        if not paths.logs.is_symlink():
            files.make_directory(paths.logs, within=paths.root)
        return
    wanted = expand_home(os.path.expandvars(settings.directory)).absolute() / paths.root.name
    files.make_directory(wanted)
    with contextlib.suppress(FileExistsError):
        os.symlink(wanted, paths.logs)
    if not paths.logs.is_symlink() or Path(os.readlink(paths.logs)) != wanted:
        here = os.path.realpath(paths.logs)
        raise ConfigError(
            f"logs.directory is {settings.directory}, but this run keeps its logs in {here}; do not change it"
        )


class Tee:
    """Follows log files while a round runs."""

    def __init__(self) -> None:
        self._followed: dict[Path, list[_Copy]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)

    def follow(self, path: Path, prefix: str, output: TextIO | Path, texts: Sequence[str] = ()) -> None:
        """Copy the lines of ``path`` to ``output`` after `start`: all, or those that contain one of ``texts``."""
        self._followed.setdefault(path, []).append((prefix, output, texts))

    def start(self) -> None:
        if self._followed:
            self._thread.start()

    def stop(self) -> None:
        """Copy the remaining lines and end the thread. Do not wait for a filesystem that hangs."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_POLL_TIMEOUT)

    def _run(self) -> None:
        tails = [(LogTail(path), copies) for path, copies in self._followed.items()]
        last = False
        while not last:
            last = self._done.wait(_POLL_INTERVAL)
            for tail, copies in tails:
                lines = [*tail.read(rest=last)]
                for prefix, output, texts in copies:
                    wanted = [line for line in lines if not texts or any(text in line for text in texts)]
                    if wanted:
                        _write(output, "".join(f"{prefix}{line}\n" for line in wanted))


def _write(output: TextIO | Path, text: str) -> None:
    """Write ``text``. Ignore a file that cannot be written."""
    if isinstance(output, Path):
        with contextlib.suppress(OSError), output.open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        output.write(text)
        output.flush()


class LogTail:
    """Reads a growing log line by line, from the byte ``offset`` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def read(self, *, rest: bool = False) -> Iterator[str]:
        """Yield the lines that are new since the last call, and with ``rest`` also an unfinished one.

        Yield none if there is no file. A log is read line by line, because it may be larger than the memory.
        """
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(self._offset)
            while self._offset < end:  # what is written meanwhile is left for the next call
                line = file.readline()
                if not line or not (rest or line.endswith(b"\n")):
                    return
                self._offset += len(line)
                yield from line.decode(errors="replace").splitlines()
