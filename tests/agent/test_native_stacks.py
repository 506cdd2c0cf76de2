"""The native stacks of processes: by py-spy itself, and by programs in its place that fail."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.agent import native_stacks as module
from hpcelastic.agent.native_stacks import PROGRAM, native_stacks
from tests.agent.processes import eventually, may_trace, waits

needs_tracing = pytest.mark.skipif(not may_trace(), reason="only root may trace processes here")


@pytest.fixture
def sleeping() -> Iterator[int]:
    code = "import time; print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert eventually(lambda: waits(process.pid))  # it may still be in the write
        yield process.pid
        process.kill()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a shell script as py-spy. Before its call, none is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def install(text: str) -> None:
        program = tmp_path / PROGRAM
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    return install


@needs_tracing
def test_a_process_that_waits_in_a_library(sleeping: int) -> None:
    stacks = native_stacks([sleeping])
    assert "nanosleep (libc" in stacks[sleeping] and "<module>" in stacks[sleeping], stacks


@needs_tracing
def test_a_process_that_has_ended(sleeping: int) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    stacks = native_stacks([ended.pid, sleeping])
    assert stacks[ended.pid].startswith("no native stacks: py-spy: "), stacks
    assert "nanosleep (libc" in stacks[sleeping]


@pytest.mark.usefixtures("installed")
def test_nothing_without_the_program() -> None:
    assert native_stacks([os.getpid()]) == {}


def test_a_program_that_may_not_trace_reports_the_reason(installed: Callable[[str], None]) -> None:
    installed("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    reason = "no native stacks: py-spy: Permission Denied: Try running again with elevated permissions\n"
    assert native_stacks([1, 2]) == {1: reason, 2: reason}


def test_a_program_that_does_not_end_is_killed(
    installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    installed(f"echo $$ > {tmp_path}/pid; exec /bin/sleep 1000")
    assert native_stacks([1]) == {1: "no native stacks: py-spy took longer than 0.3 s\n"}
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
