"""Functions in forked processes: races between processes, and deaths at a chosen call."""

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 60.0
"""Time limit for a forked process in seconds."""

STEPS = ("open", "write", "fsync", "close", "link", "symlink", "unlink", "replace", "mkdir", "fchmod")
"""Functions of ``os`` that change a filesystem or release a resource. A death occurs before, in or after one."""


@contextlib.contextmanager
def forked(body: Callable[[], Any]) -> Iterator[tuple[int, int]]:
    """A child that runs ``body`` and writes its result as JSON to a pipe: pid, read end. It is killed at the end."""
    result, output = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(result)
            os.write(output, json.dumps(body()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(output)
    try:
        yield pid, result
    finally:
        os.close(result)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def read_to_end(fd: int) -> bytes:
    """Return all data from ``fd``. Fail the test if the other end stays open for too long."""
    data, deadline = b"", time.monotonic() + TIMEOUT
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, "a forked process hangs"
        chunk = os.read(fd, 65536)
        if not chunk:
            return data
        data += chunk


def in_processes(count: int, function: Callable[[int], Any]) -> list[Any]:
    """Return the results of ``function`` for 0, 1, ..., each in its own process. All start at the same moment."""
    gate, starter = os.pipe()

    def body(index: int) -> Any:
        os.close(starter)
        os.read(gate, 1)
        return function(index)

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, gate)
        opened = stack.enter_context(contextlib.ExitStack())
        opened.callback(os.close, starter)
        children = [stack.enter_context(forked(lambda index=index: body(index))) for index in range(count)]
        opened.close()
        return [json.loads(read_to_end(result)) for _, result in children]


@contextlib.contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """A stopped process holds the lock until the end of the context."""

    def hold() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGSTOP)

    with forked(hold) as (pid, _):
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield


def steps_of(operation: Callable[[], Any]) -> list[str]:
    """Return the names of the `STEPS` that ``operation`` makes in a child, in order."""
    taken: list[str] = []

    def body() -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            _on_each_step(patch, lambda name, call, args: (taken.append(name), call(*args))[1])
            operation()
        return taken

    with forked(body) as (_, result):
        found: list[str] = json.loads(read_to_end(result))
    return found


def die_in(operation: Callable[[], Any], step: int, where: str) -> None:
    """Run ``operation`` in a child that kills itself ``before``, ``after`` or ``amid`` step number ``step``."""
    count = -1

    def take(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        nonlocal count
        count += 1
        if count == step and where == "amid":
            assert name == "write"
            call(args[0], bytes(args[1])[: len(args[1]) // 2])
        if count == step and where in ("before", "amid"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call(*args)
        finally:
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    def body() -> None:
        with pytest.MonkeyPatch.context() as patch:
            _on_each_step(patch, take)
            operation()

    with forked(body) as (pid, result):
        read_to_end(result)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status


def deaths(steps: list[str]) -> list[tuple[int, str]]:
    """Return every point at which a process with ``steps`` can die."""
    return [
        (index, where)
        for index, name in enumerate(steps)
        for where in (("before", "amid", "after") if name == "write" else ("before", "after"))
    ]


def _on_each_step(patch: pytest.MonkeyPatch, take: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    for name in STEPS:
        call = getattr(os, name)
        patch.setattr(os, name, lambda *args, name=name, call=call, **more: take(name, _bound(call, more), args))


def _bound(call: Callable[..., Any], more: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args: call(*args, **more)
