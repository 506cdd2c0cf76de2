"""Copies of workers' logs to the agent's own output, each line with its rank."""

import threading
from pathlib import Path
from typing import TextIO

_PACE = 0.2
"""Seconds between two looks at the logs."""

_LAST_LOOK = 5.0
"""Seconds that the last look at the logs may take; what is not copied then is in the logs still."""


class Tee:
    """Follows log files while a round runs."""

    def __init__(self) -> None:
        self._followed: list[tuple[Path, str, TextIO]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)

    def follow(self, path: Path, prefix: str, output: TextIO) -> None:
        """Copy the lines of ``path`` to ``output``, from `start` on."""
        self._followed.append((path, prefix, output))

    def start(self) -> None:
        if self._followed:
            self._thread.start()

    def stop(self) -> None:
        """Copy what is left, and end; a filesystem that hangs is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_LOOK)

    def _run(self) -> None:
        tails = [(LogTail(path), prefix, output) for path, prefix, output in self._followed]
        last = False
        while not last:
            last = self._done.wait(_PACE)
            for tail, prefix, output in tails:
                lines = tail.read(rest=last)
                if lines:
                    output.write("".join(f"{prefix}{line}\n" for line in lines))
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
