"""Histories of processes that work on one object at the same time, on all clients of a filesystem."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tests.filesystems.clients import Client, MountSet, Process, started
from tests.linearizability.checker import UNKNOWN, Operation, widened
from tests.linearizability.recorder import kernel

TIMEOUT = 120.0
"""Time limit in seconds for the recording of one history."""


@dataclass(frozen=True)
class Recording:
    """The kind of the object, the number of processes of each client, and the number of operations of each process."""

    kind: str
    folder: str
    seed: int
    count: int = 40
    processes: int = 2
    killed: bool = False
    """Whether the first process is killed during the recording."""


def record(shared: MountSet, recording: Recording) -> list[Operation]:
    """Return the history, on this machine's monotonic clock."""
    total = recording.processes * len(shared.clients)
    with ExitStack() as stack:
        running = [
            _Recorder(stack, client, f"{place}-{index}", recording, total)
            for place, client in enumerate(shared.clients)
            for index in range(recording.processes)
        ]
        if recording.killed:
            running[0].kill_amid(recording.count // 2)
        return [operation for recorder in running for operation in recorder.operations()]


class _Recorder:
    """One recording process."""

    def __init__(self, stack: ExitStack, client: Client, who: str, recording: Recording, total: int) -> None:
        arguments = [client.directory / recording.folder, who, recording.count, total, recording.seed]
        argv = [sys.executable, "-m", "tests.linearizability.recorder", recording.kind, *map(str, arguments)]
        self._begun = time.monotonic()
        self._process: Process = stack.enter_context(started(client, argv))
        self._who = who
        self._killed = False

    def kill_amid(self, calls: int) -> None:
        """Kill the process after it has begun so many calls, usually during a call."""
        deadline = time.monotonic() + TIMEOUT
        while self._process.output().count('"call"') < calls and time.monotonic() < deadline:
            time.sleep(0.005)
        self._process.kill()
        self._killed = True

    def operations(self) -> list[Operation]:
        status = self._process.wait(TIMEOUT)
        ended = time.monotonic()
        output = self._process.output()
        assert self._killed or status == 0, output
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
        found = paired(self._who, lines)
        if lines[0]["kernel"] == kernel():
            return found
        # The offset of a guest's clock is known only from two facts: the process began after it was started, and ended
        # before its end was observed.
        first, last = self._begun - lines[0]["at"], ended - lines[-1]["at"]
        return widened(found, -first, last)


def paired(who: str, lines: Sequence[dict[str, Any]]) -> list[Operation]:
    """Return the operations that a process has written."""
    found: list[Operation] = []
    for line in lines:
        if "call" in line:
            found.append(Operation(who, tuple(line["call"]), UNKNOWN, line["at"]))
        elif "result" in line:
            found[-1] = replace(found[-1], result=line["result"], returned=line["at"])
    return found
