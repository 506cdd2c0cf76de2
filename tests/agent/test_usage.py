"""The processor time that a worker and its data loaders use or wait for."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hpcelastic.agent.usage import Usage, usage_of
from tests.cli.shell import eventually

LOOP = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); {}; print(flush=True)\nwhile True: pass"
IDLE_CLASS = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
SECONDS = 1.0


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator[int]:
    """Provide the id of a process that has printed a line."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        try:
            started.stdout.readline()
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)  # with its children


def works(pid: int) -> bool:
    before, began = usage_of(pid), time.monotonic()
    time.sleep(SECONDS)
    return usage_of(pid).works_since(before, time.monotonic() - began)


def test_a_process_that_gets_no_processor_is_seen_to_need_one() -> None:
    """The machine is overloaded: a busy process has the only processor of another one."""
    processor = str(min(os.sched_getaffinity(0)))
    with process(LOOP.format(IDLE_CLASS), processor) as starved, process(LOOP.format("pass"), processor):
        assert works(starved)


@pytest.mark.parametrize("stopped", [False, True], ids=["asleep", "stopped"])
def test_a_process_that_waits_needs_none(stopped: bool) -> None:
    code = "import time; print(flush=True); time.sleep(1000)"
    with process(code) as waiting:
        if stopped:
            os.kill(waiting, signal.SIGSTOP)
        assert not works(waiting)


def test_time_without_a_processor_counts_as_work() -> None:
    """It is counted when a process gets a processor, in which moment it may wait for something else."""
    assert Usage(1.5, False, 0).works_since(Usage(1.0, True, 0), 2.0)
    assert not Usage(1.1, False, 0).works_since(Usage(1.0, True, 0), 2.0)


def test_children_count() -> None:
    child = "[sys.executable, '-c', 'while True: pass']"
    code = f"import subprocess, sys; subprocess.Popen({child}).wait(print(flush=True))"
    with process(code) as parent:
        eventually(lambda: usage_of(parent).children == 1)
        assert works(parent)


def test_a_process_that_has_ended_uses_nothing() -> None:
    with process("print(flush=True)") as ended:
        pass
    assert usage_of(ended) == Usage(0.0, False, 0)
