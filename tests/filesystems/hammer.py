"""Increments of one counter by many processes: ``hammer KIND DIRECTORY INCREMENTS WHO PROCESSES``.

Each process records the numbers that its increments returned. An increment is lost if another one returned the same
number. It was executed twice if no increment returned a number.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from tests.filesystems.clients import MountSet, Process, program, started

Increment: TypeAlias = "Callable[[], int]"

LIMIT = 40.0
"""Seconds after which a process ends its increments."""


@dataclass(frozen=True)
class Observation:
    """The effect of all processes on a counter."""

    wanted: int
    """Number of requested increments."""

    returned: tuple[int, ...]
    """The numbers that increments returned, sorted."""

    errors: tuple[tuple[str, int], ...]
    """Errors of increments, the most frequent first. Such an increment may have taken effect or not."""

    seconds: float

    @property
    def lost(self) -> int:
        return len(self.returned) - len(set(self.returned))

    @property
    def twice(self) -> int:
        """Return the numbers that no increment returned."""
        return max(self.returned, default=0) - len(set(self.returned))

    @property
    def exact(self) -> bool:
        return self.returned == tuple(range(1, self.wanted + 1))

    @property
    def failed(self) -> int:
        return sum(count for _, count in self.errors)


def hammer(kind: str, shared: MountSet, name: str, increments: int, processes: int) -> Observation:
    """Increment one counter with so many processes on each client, in the shared directory's folder ``name``."""
    count = processes * len(shared.clients)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                started(client, program("hammer", kind, client.directory / name, increments, f"{place}-{index}", count))
            )
            for place, client in enumerate(shared.clients)
            for index in range(processes)
        ]
        deadline = time.monotonic() + 2 * LIMIT
        reports = [_report(process, deadline) for process in running]
    returned = tuple(sorted(chain.from_iterable(report.returned for report in reports)))
    errors = sum((Counter(report.errors) for report in reports), Counter[str]())
    seconds = max(report.seconds for report in reports)
    return Observation(count * increments, returned, tuple(errors.most_common()), seconds)


@dataclass(frozen=True)
class _Report:
    """The reports of one process, until it has ended or hangs."""

    returned: list[int]
    errors: dict[str, int]
    seconds: float


def _report(process: Process, deadline: float) -> _Report:
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        status = None
    lines = process.output().splitlines()
    returned = [int(line) for line in lines if line.isdigit()]
    if status == 0:
        return _Report(returned, **json.loads(lines[-1]))
    return _Report(returned, {"hung" if status is None else f"died: {lines[-1:]}": 1}, LIMIT)


# In each process


def plain_lock(directory: Path, who: str) -> Increment:
    """Read and replace the file while holding a lock, like most programs."""
    import filelock

    lock, rename = filelock.FileLock(directory / "lock", timeout=LIMIT), plain_rename(directory, who)

    def increment() -> int:
        with lock:
            return rename()

    return increment


def plain_rename(directory: Path, who: str) -> Increment:
    """Read, write a new file, rename: each file is complete, but other writers are not excluded."""
    counter, draft = directory / "counter", directory / f"draft-{who}"

    def increment() -> int:
        number = int(counter.read_text()) + 1 if counter.exists() else 1
        draft.write_text(str(number))
        os.replace(draft, counter)
        return number

    return increment


def torch_file_store(directory: Path, who: str) -> Increment:
    """compare_set of torch's FileStore, with values that no other writer can have written."""
    from torch.distributed import FileStore

    store, last, written = FileStore(str(directory / "counter")), "", 0
    store.set_timeout(timedelta(seconds=LIMIT / 4))

    def increment() -> int:
        nonlocal last, written
        while True:
            written += 1
            mine = f"{int(last.partition(' ')[0] or 0) + 1} {who} {written}"
            last = store.compare_set("counter", last, mine).decode()
            if last == mine:
                return int(last.partition(" ")[0])

    return increment


def register(directory: Path, who: str) -> Increment:
    from hpcelastic.storage.register import Register

    counter = Register(directory, who)
    return lambda: int(counter.update(lambda old: (old or 0) + 1).value)


def store_add(directory: Path, who: str) -> Increment:
    from hpcelastic.storage.keyvalue import KeyValueStore

    store = KeyValueStore(directory / "store", who)
    return lambda: store.add("counter", 1)


KINDS: dict[str, Callable[[Path, str], Increment]] = {
    "plain lock": plain_lock,
    "plain rename": plain_rename,
    "torch FileStore": torch_file_store,
    "hpcelastic": register,
    "hpcelastic add": store_add,
}


def meet(directory: Path, who: str, count: int) -> None:
    """Return when so many processes have arrived. Only listings are used, because an absent name may be cached."""
    while True:
        try:
            (directory / f"ready-{who}").touch()
            if sum(name.startswith("ready-") for name in os.listdir(directory)) >= count:
                return
        except OSError:
            pass  # a filesystem with random errors
        time.sleep(0.02)


def main(kind: str, directory: str, increments: int, who: str, processes: int) -> None:
    increment = KINDS[kind](Path(directory), who)
    meet(Path(directory), who, processes)
    made, errors, start = 0, Counter[str](), time.monotonic()
    while made < increments and time.monotonic() - start < LIMIT:
        try:
            print(increment(), flush=True)  # at once: a process that hangs later has reported its work
            made += 1
        except Exception as error:
            errors[_brief(error)] += 1
            time.sleep(0.01)
    print(json.dumps({"errors": errors, "seconds": time.monotonic() - start}))


def _brief(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__


def arguments(argv: Sequence[str]) -> tuple[str, str, int, str, int]:
    kind, directory, increments, who, processes = argv
    return kind, directory, int(increments), who, int(processes)


if __name__ == "__main__":
    main(*arguments(sys.argv[1:]))
