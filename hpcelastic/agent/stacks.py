"""The stacks of a node's workers: how they are collected, and the file that a user's request leaves.

A request is a number in the run's state, so all agents see it, also those that were not notified. Each agent signals
its workers. A thread then collects their stacks from memory and writes one file, because the run's directory may be
what the workers wait for.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.fork_server import PROGRAM
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.worker import Worker
from hpcelastic.errors import StoreError
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.stack_memory import SIGNAL, StackMemory
from hpcelastic.protocol.events import Event, StacksWritten
from hpcelastic.protocol.state import State, name_of
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

_ANSWER_TIMEOUT = 1.0
"""Seconds in which a worker writes its stacks, if it can."""

_SETTLED = 0.05
"""Seconds without further output after which the stacks of a worker are complete."""

_STATES = {
    "D": "blocked in the kernel",
    "R": "running",
    "S": "waiting",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
}
"""States of a process; see proc_pid_stat(5)."""


@dataclass(frozen=True)
class WorkersOfRound:
    """The workers of a node that are in a round, and have not ended."""

    round: int
    workers: Sequence[Worker] = ()


@dataclass(frozen=True)
class WorkerStacks:
    """The stacks of a worker, or the ``reason`` why they are unknown."""

    text: str
    reason: str = ""

    @property
    def main(self) -> tuple[str, ...]:
        """The stack of the main thread, the innermost frame first, as ``FILE:LINE in FUNCTION``."""
        frames = (line.strip() for line in self.text.splitlines() if line.startswith('  File "'))
        return tuple(_short_frame(frame) for frame in frames)


@contextlib.contextmanager
def held(workers: Sequence[Worker]) -> Iterator[Mapping[Worker, int]]:
    """Provide a descriptor of each worker that stays valid while its agent reaps it."""
    pidfds = {worker: os.dup(worker.pidfd) for worker in sorted(workers, key=lambda each: each.rank)}
    try:
        yield pidfds
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


class StackCollector:
    """Collects the stacks of the workers at ``seats`` seats of this node."""

    def __init__(self, seats: int) -> None:
        self._memories = [StackMemory() for _ in range(seats)]
        self._one_at_a_time = threading.Lock()

    @property
    def variables(self) -> tuple[str, ...]:
        """The value of the environment variable ``HPCELASTIC_STACKS`` of each worker, by local rank."""
        return tuple(memory.variable for memory in self._memories)

    def close(self) -> None:
        """Release the memory, once no stacks are collected any more."""
        with self._one_at_a_time:
            for memory in self._memories:
                memory.close()
            self._memories = []

    def collect(self, pidfds: Mapping[Worker, int]) -> dict[Worker, WorkerStacks]:
        """Return the stacks of the workers now. It takes about `_ANSWER_TIMEOUT` at most. See `held`."""
        with self._one_at_a_time:
            if not self._memories:
                return {worker: WorkerStacks("", "the agent ends") for worker in pidfds}
            reasons = {worker: self._ask(worker, pidfd) for worker, pidfd in pidfds.items()}
            asked = [worker for worker, reason in reasons.items() if not reason]
            texts = dict(zip(asked, self._await([self._memories[each.local_rank] for each in asked]), strict=True))
            return {worker: _answer(texts.get(worker, ""), reason) for worker, reason in reasons.items()}

    def _ask(self, worker: Worker, pidfd: int) -> str:
        """Signal a worker. Return the reason why it does not write its stacks; empty if it may."""
        self._memories[worker.local_rank].clear()
        if not _catches(worker.process.pid):
            return "it does not write stacks, because it was not forked from the fork server, or is starting"
        try:
            signal.pidfd_send_signal(pidfd, SIGNAL)
        except OSError as error:  # it has ended, and was reaped
            return error.strerror or str(error)
        return ""

    def _await(self, memories: Sequence[StackMemory]) -> list[str]:
        """Return what the workers have written, once all have answered and nothing is added any more.

        After `_ANSWER_TIMEOUT` only those that write now are awaited.
        """
        texts, since = [memory.read() for memory in memories], time.monotonic()
        deadline = since + _ANSWER_TIMEOUT
        while texts and time.monotonic() < max(since + _SETTLED, 0.0 if all(texts) else deadline):
            time.sleep(_SETTLED / 5)
            if (newer := [memory.read() for memory in memories]) != texts:
                texts, since = newer, time.monotonic()
        return texts


def _answer(text: str, reason: str) -> WorkerStacks:
    """Return the stacks in ``text``, which a worker has written, or the ``reason`` why it has not."""
    text = _of_user(text)
    return WorkerStacks(text, "" if text else reason or "it has not reacted to the signal")


class StackRecorder:
    """Writes the stacks of this node's workers to the run's directory when a user requests them.

    ``seen`` is the number of requests before the agent started.
    """

    def __init__(
        self,
        paths: RunPaths,
        node: str,
        control_page: ControlPage,
        collector: StackCollector,
        log: Callable[[Event], None],
        seen: int,
    ) -> None:
        self._paths, self._name, self._control_page = paths, name_of(node), control_page
        self._collector, self._log, self._seen = collector, log, seen

    def observe(self, state: State, workers: Callable[[], WorkersOfRound]) -> None:
        """Write the stacks if the state has a new request. Returns at once."""
        if state.stacks > self._seen:
            self._seen, found = state.stacks, workers()
            stack = contextlib.ExitStack()
            pidfds = stack.enter_context(held(found.workers))  # here, because the caller's thread reaps the workers
            arguments = (state.stacks, found.round, pidfds, stack)
            threading.Thread(target=self._record, args=arguments, name="stacks", daemon=True).start()

    def _record(self, request: int, round: int, pidfds: Mapping[Worker, int], stack: contextlib.ExitStack) -> None:
        with stack:
            text = describe_stacks(self._collector.collect(pidfds), round, self._control_page)
        path = self._paths.stacks(request, self._name)
        with contextlib.suppress(StoreError):  # a directory that fails is reported elsewhere
            files.make_directory(path.parent, within=self._paths.root)
            files.publish(path, text.encode())
            self._log(StacksWritten(request=request, round=round, path=str(path)))


def describe_stacks(collected: Mapping[Worker, WorkerStacks], round: int, control_page: ControlPage) -> str:
    """Return the text for a file with the stacks of the workers of ``round``."""
    parts = [_describe(round, worker, stacks, control_page) for worker, stacks in collected.items()]
    return "\n".join(parts) or "no worker of this node is in a round, or they are starting\n"


def _describe(round: int, worker: Worker, stacks: WorkerStacks, control_page: ControlPage) -> str:
    text = stacks.text or f"no stacks: {stacks.reason}\n"
    pid = worker.process.pid
    mark = control_page.marks(worker.local_rank).newest(round)
    last = ""
    if mark is not None:
        age = max(0.0, boottime() - mark.time / 1e9)
        last = f", last mark: {mark.kind.name.lower()} {mark.value}, {age:.1f} s ago"
    return f"rank {worker.rank}, local rank {worker.local_rank}, process {pid} ({state_of(pid)}){last}\n{text}"


def state_of(pid: int) -> str:
    """Return the state of a process, and what it waits for in the kernel as far as this is known."""
    letter = state_letter(pid)
    text = _STATES.get(letter, letter)
    if letter == "D":
        with contextlib.suppress(OSError):
            text += f" in {Path(f'/proc/{pid}/wchan').read_text() or 'an unknown function'}"
    return text


def state_letter(pid: int) -> str:
    """Return the state of a process as in proc_pid_stat(5); Z if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _of_user(stacks: str) -> str:
    """Return the stacks without the frame that runs the script in a fork of the fork server."""
    return "".join(line for line in stacks.splitlines(keepends=True) if f'"{PROGRAM}"' not in line)


def _short_frame(frame: str) -> str:
    """Return ``FILE:LINE in FUNCTION`` for a line of `faulthandler`."""
    file, _, rest = frame.removeprefix('File "').partition('", line ')
    line, _, function = rest.partition(" in ")
    return f"{file}:{line} in {function}"


def _catches(pid: int) -> bool:
    """Return whether a process has a handler for `SIGNAL`; see SigCgt in proc_pid_status(5)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
