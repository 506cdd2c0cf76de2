"""Where workers' logs are kept, and copies of them: to the agent's own output, each line with a prefix; of lines with
certain texts to a file.
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

from hpcelastic.agent.settings import LogSettings
from hpcelastic.errors import ConfigError
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths

_PACE = 0.2
"""Seconds between two looks at the logs."""

_LAST_LOOK = 5.0
"""Seconds that the last look at the logs may take; what is not copied then is in the logs still."""


_Copy: TypeAlias = tuple[str, TextIO | Path, Sequence[str]]
"""A prefix, where lines go, and the texts of which a line must have one."""


def make_logs(paths: RunPaths, settings: LogSettings) -> None:
    """Make the directory for logs on this node: in the run's own, or elsewhere with a link to it.

    ConfigError if the run keeps its logs in another place already.
    """
    if settings.directory is None:
        if not paths.logs.is_symlink():
            files.make_directory(paths.logs)
        return
    wanted = Path(os.path.expandvars(settings.directory)).expanduser().absolute() / paths.root.name
    files.make_directory(wanted)
    with contextlib.suppress(FileExistsError):
        os.symlink(wanted, paths.logs)
    if not paths.logs.is_symlink() or Path(os.readlink(paths.logs)) != wanted:
        here = os.path.realpath(paths.logs)
        raise ConfigError(f"logs.directory is {settings.directory}, but this run keeps its logs in {here}; leave it so")


class Tee:
    """Follows log files while a round runs."""

    def __init__(self) -> None:
        self._followed: dict[Path, list[_Copy]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)

    def follow(self, path: Path, prefix: str, output: TextIO | Path, having: Sequence[str] = ()) -> None:
        """Copy the lines of ``path`` to ``output``, from `start` on: those that have one of some texts, or all."""
        self._followed.setdefault(path, []).append((prefix, output, having))

    def start(self) -> None:
        if self._followed:
            self._thread.start()

    def stop(self) -> None:
        """Copy what is left, and end; a filesystem that hangs is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_LOOK)

    def _run(self) -> None:
        tails = [(LogTail(path), copies) for path, copies in self._followed.items()]
        last = False
        while not last:
            last = self._done.wait(_PACE)
            for tail, copies in tails:
                lines = tail.read(rest=last)
                for prefix, output, having in copies:
                    wanted = [line for line in lines if not having or any(text in line for text in having)]
                    if wanted:
                        _put(output, "".join(f"{prefix}{line}\n" for line in wanted))


def _put(output: TextIO | Path, text: str) -> None:
    """Write it; a file that can't be written is done without."""
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

    def read(self, *, rest: bool = False) -> list[str]:
        """Lines that are new since the last call, an unfinished one too if ``rest``; none where there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        if not rest:
            data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode(errors="replace").splitlines()
