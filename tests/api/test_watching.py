"""Runs that are awaited, watched by callbacks, and shown. A hung filesystem blocks no caller, and the run continues."""

import asyncio
import errno
import itertools
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic import Run, RunFailed, submit
from hpcelastic.api import display, watching
from hpcelastic.api import run as run_module
from hpcelastic.api.status import RunStatus
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.findings import Slow
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Phase, State
from hpcelastic.rendezvous.run import open_run
from hpcelastic.rendezvous.run import read_state as real_read_state
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register
from tests.api.jobs import KEYWORDS, WAITS, job
from tests.cli.shell import TIMEOUT, Shell, eventually


@pytest.fixture
def run(shell: Shell) -> Run:
    """A run of one rank that trains until the file ``finish`` exists."""
    shell.write({"train.py": WAITS})
    return submit(job(), executor="local")


def finish() -> None:
    Path("finish").touch()


@pytest.mark.slow
def test_an_awaited_run_returns_its_status_while_other_tasks_continue(run: Run) -> None:
    async def main() -> RunStatus:
        waiting = asyncio.ensure_future(run.wait_async())
        while not list(run.logs()):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        finish()
        await waiting
        return await run

    assert asyncio.run(main()).phase == "succeeded"


@pytest.mark.slow
def test_results_and_failures_are_awaited(shell: Shell) -> None:
    def train(value: int) -> int:
        return 10 // value

    async def main() -> list[object]:
        runs = [submit(train, value, executor="local", **KEYWORDS) for value in (5, 0)]
        return await asyncio.gather(*(run.result_async(TIMEOUT) for run in runs), return_exceptions=True)

    good, bad = asyncio.run(main())
    assert good == [2]
    assert isinstance(bad, RunFailed)
    assert isinstance(bad.__cause__, ZeroDivisionError)


def test_timeout_of_an_awaited_run(run: Run) -> None:
    with pytest.raises(TimeoutError, match="r has not ended"):
        asyncio.run(run.wait_async(0.1))
    finish()


def test_an_await_is_cancelled_at_once_while_the_filesystem_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(_backend: object) -> None:
        hangs.set()
        released.wait()
        raise StoreError("late")

    monkeypatch.setattr("hpcelastic.api.run.read_state", hang)

    async def main() -> None:
        waiting = asyncio.ensure_future(run.wait_async())
        while not hangs.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())  # does not wait for the thread either
    released.set()
    monkeypatch.undo()


def test_threads_end_when_no_caller_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL", 0.01)
    before = threading.active_count()
    call_off = [run.on_change(lambda _status: None), run.add_done_callback(lambda _run: None)]

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(run.wait_async(), 0.05)

    asyncio.run(main())
    for stop in call_off:
        stop()
    eventually(lambda: threading.active_count() <= before)
    assert not run.status().ended


@pytest.mark.slow
def test_callbacks_get_changes_until_the_end(run: Run) -> None:
    changes: list[RunStatus] = []
    done: list[Run] = []
    run.on_change(changes.append)
    run.add_done_callback(done.append)
    eventually(lambda: any(status.phase == "running" for status in changes))
    assert done == []
    finish()
    eventually(lambda: done)
    eventually(lambda: changes[-1].ended)
    assert done == [run]
    assert all(before != after for before, after in itertools.pairwise(changes))
    threads = threading.active_count()
    again: list[Run] = []
    run.add_done_callback(again.append)
    eventually(lambda: again and threading.active_count() <= threads)


@pytest.mark.slow
def test_a_failed_callback_is_reported_and_has_no_effect(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def fails(status: RunStatus) -> None:
        called.append(status.phase)
        raise ValueError("no such dashboard")

    run.on_change(fails)
    eventually(lambda: "running" in called)
    finish()
    eventually(lambda: "succeeded" in called)
    eventually(lambda: caplog.text.count("ValueError: no such dashboard") == len(called))  # the last one is complete
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.slow
def test_a_failure_of_the_directory_is_reported_once_and_watching_continues(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []
    real = watching.read_state

    def read(backend: object) -> object:
        looks.append(1)
        if len(looks) < 5:
            raise StoreError("the disk is gone")
        return real(backend)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(watching, "POLL", 0.01)
    monkeypatch.setattr(watching, "read_state", read)
    done: list[Run] = []
    run.add_done_callback(done.append)
    finish()
    eventually(lambda: done)
    assert [record.getMessage() for record in caplog.records] == ["cannot read the status of r: the disk is gone"]


@pytest.mark.slow
def test_a_callback_for_a_run_without_agents(shell: Shell, run: Run) -> None:
    done: list[Run] = []
    run.add_done_callback(done.append)
    eventually(lambda: list(run.logs()))
    shell.close()
    eventually(lambda: done)
    assert run.status().phase == "running"


@pytest.mark.slow
def test_plain_text_shows_every_change(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    eventually(lambda: list(run.logs()))
    threading.Timer(0.5, finish).start()
    run.watch()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "--- running, round 1, world size 1: round 1 formed on 1 node"
    assert shown[-1] == "--- succeeded, round 1, world size 1: all workers of round 1 succeeded"


@pytest.mark.slow
def test_an_interrupt_ends_only_the_watching(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    eventually(lambda: list(run.logs()))
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.7, signal.pthread_kill, (main, signal.SIGINT)).start()
    run.watch()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "stopped watching; r continues; to watch it again: hpcelastic.Run.open('r').watch()"
    assert run.status().phase == "running"
    finish()
    assert Run.open("r").wait(TIMEOUT).phase == "succeeded"


@pytest.mark.slow
def test_watching_ends_for_a_run_without_agents(shell: Shell, run: Run) -> None:
    eventually(lambda: list(run.logs()))
    shell.close()
    with pytest.raises(RunFailed, match="no agent and no SLURM job is left"):
        run.watch()


def test_the_reason_of_a_wait_is_shown(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.write({"train.py": WAITS})
    run = submit(job(nodes="1..2"), executor="local")
    status = run.status()
    assert status.phase != "joining" or "ready" in status.waits_for
    view = display._ProgressView(run)
    view.status = RunStatus(
        name="r",
        directory=run.directory,
        phase="joining",
        round=0,
        reason="the run was created",
        world_size=0,
        restarts=0,
        max_restarts=3,
        min_nodes=2,
        nodes=(),
        failures=(),
        jobs=("12",),
    )
    assert view.waits_for == "nodes: 0 of at least 2 ready"
    view._job_state = view._query_slurm()
    assert re.fullmatch(r"nodes: 0 of at least 2 ready; SLURM job 12: .+", view.waits_for)


@pytest.mark.slow
def test_only_the_last_lines_of_earlier_output(shell: Shell) -> None:
    shell.write({"train.py": "for i in range(1000): print('line', i)\nprint('x' * 5000)\nprint('end', end='')\n"})
    run = submit(job(), executor="local")
    run.wait(TIMEOUT)
    eventually(lambda: list(run.logs())[-1] == "[1.0] end")
    view = display._ProgressView(run, monitor=watching.LivenessMonitor(run.reader))
    assert list(view.last)[-1] == "[1.0] end"
    assert len(view.last) <= 8
    assert not [line for line in view.refresh() if not line.startswith("---")]


@pytest.mark.slow
def test_display_is_drawn_in_place_in_a_terminal(run: Run, shell: Shell) -> None:
    ours, theirs = pty.openpty()
    code = "import hpcelastic; hpcelastic.Run.open('r').watch()"
    eventually(lambda: list(run.logs()))
    environ = shell.environ | {"TERM": "xterm-256color", "XDG_STATE_HOME": "/nonexistent"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + TIMEOUT
    while b"hello from rank 0" not in shown:
        assert time.monotonic() < deadline, shown
        shown += os.read(ours, 65536)
    finish()
    while b"succeeded" not in shown:
        assert time.monotonic() < deadline, shown
        shown += os.read(ours, 65536)
    assert process.wait(TIMEOUT) == 0
    assert b"\x1b[1A" in shown
    os.close(ours)


def test_output_is_shown_also_if_the_status_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases, paths.logs / "round-0001"):
        directory.mkdir(parents=True)
    open_run(FileBackend(paths), "r", Settings(), "test")
    view = display._ProgressView(Run(paths.root))
    (paths.logs / "round-0001" / "rank-00000.out").write_text("the last words\n")
    with monkeypatch.context() as patch:
        patch.setattr(display, "status_of", raising(StoreError("the server has ended")))
        assert view.refresh() == ["[1.0] the last words", "--- cannot read the status of the run: the server has ended"]
    assert view.refresh()[0].startswith("--- joining")


def test_the_last_lines_of_a_run_without_agents_are_shown_before_the_error(
    created: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = created.logs / "round-0001" / "rank-00000.out"

    def check(*_: object) -> None:
        log.write_text("one\nthe last wor")
        raise RunFailed("no agent is left")

    monkeypatch.setattr(watching.LivenessMonitor, "check", check)
    monkeypatch.setattr(display, "_REFRESH_INTERVAL", 0.001)
    with pytest.raises(RunFailed, match="no agent is left"):
        Run(created.root).watch()
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")] == [
        "[1.0] one",
        "[1.0] the last wor",
    ]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file"), SlurmError("squeue lists no job of ada")]
)
def test_why_the_state_of_a_job_is_unknown_is_shown(
    error: Exception, created: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    created.jobs.parent.mkdir()
    created.jobs.write_text('{"job": "12"}\n')
    monkeypatch.setattr(display, "live_jobs", raising(error))
    shown = display._ProgressView(Run(created.root)).refresh()
    assert shown[0].endswith(f"; SLURM job 12: unknown ({error})")


def test_a_look_that_takes_long_loses_no_line_and_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases, paths.logs / "round-0001"):
        directory.mkdir(parents=True)
    open_run(FileBackend(paths), "r", Settings(), "test")
    view = display._ProgressView(Run(paths.root))
    log = paths.logs / "round-0001" / "rank-00000.out"
    log.write_text("one\n")
    goes_on, looks, real = threading.Event(), list[str](), display.status_of

    def hangs(*given: Any) -> RunStatus:
        looks.append("")
        assert goes_on.wait(TIMEOUT)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(display, "status_of", hangs)
        patch.setattr(display, "_TIMEOUT", 0.01)
        assert re.fullmatch(r"--- cannot read the status of the run: .* no answer within 0\.01 s.*", *view.refresh())
        assert [view.refresh() for _ in range(3)] == [[]] * 3, "the problem is the same"
        assert len(looks) == 1
        goes_on.set()
        eventually(lambda: not view._look._lock.locked())
    log.write_text("one\ntwo\n")
    assert [line for line in view.refresh() if line.startswith("[")] == ["[1.0] one", "[1.0] two"]


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_straggler_that_comes_and_goes_is_shown_once(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    register, state = Register(paths.register, "test"), open_run(FileBackend(paths), "r", Settings(), "test")
    state = replace(state, phase=Phase.RUNNING, round=1, reason="round 1 formed on 2 nodes")
    view, shown = display._ProgressView(Run(paths.root)), list[str]()
    for version, ranks in enumerate([(3,), (), (3,), (4,)], start=1):
        register.commit(version, encode(replace(state, slow=Slow(1, ranks, f"{ranks} is slow" if ranks else ""))))
        shown += view.refresh()
    assert shown == [
        "--- running, round 1, world size 0: round 1 formed on 2 nodes",
        "--- (3,) is slow",
        "--- (4,) is slow",
    ]
    assert "(4,) is slow" in str(display._panel(view).renderables[2])


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run without agents."""
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases, paths.logs / "round-0001"):
        directory.mkdir(parents=True)
    open_run(FileBackend(paths), "r", Settings(), "test")
    monkeypatch.setattr(run_module, "POLL", 0.01)
    return paths


def read_with_errors(paths: RunPaths, errors: int) -> Callable[[Backend], State]:
    """Return a function that reads the state. So many calls after the first one fail. The run has ended then."""
    calls: list[int] = []

    def read(backend: Backend) -> State:
        calls.append(1)
        if 1 < len(calls) <= 1 + errors:
            raise StoreError("the server is away")
        state = real_read_state(backend)
        if len(calls) == errors + 2:
            state = replace(state, phase=Phase.SUCCEEDED)
            Register(paths.register, "test").commit(1, encode(state))
        return state

    return read


@pytest.mark.parametrize(
    ("waits", "result"),
    [
        pytest.param(lambda run: run.wait(TIMEOUT).phase, "succeeded", id="wait"),
        pytest.param(lambda run: [*run.logs(follow=True)], ["[1.0] one", "[1.0] end"], id="logs"),
    ],
)
def test_a_wait_survives_errors_of_the_directory(
    waits: Callable[[Run], object],
    result: object,
    created: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (created.logs / "round-0001" / "rank-00000.out").write_text("one\nend")
    monkeypatch.setattr(run_module, "read_state", read_with_errors(created, 3))
    assert waits(Run(created.root)) == result
    assert [record.getMessage() for record in caplog.records] == ["cannot read the status of r: the server is away"]


def test_a_wait_ends_with_an_error_that_stays(created: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "read_state", read_with_errors(created, 3))
    monkeypatch.setattr(watching, "_ERROR_TIMEOUT", -1)
    with pytest.raises(StoreError, match="the server is away"):
        Run(created.root).wait(TIMEOUT)


def test_a_wait_reports_an_error_of_the_first_look_at_once(created: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "read_state", raising(StoreError("it is damaged")))
    with pytest.raises(StoreError, match="it is damaged"):
        Run(created.root).wait(TIMEOUT)


def test_followed_logs_have_the_unfinished_line_of_a_run_without_agents(
    created: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (created.logs / "round-0001" / "rank-00000.out").write_text("one\nthe last wor")
    monkeypatch.setattr(watching.LivenessMonitor, "check", raising(RunFailed("no agent is left")))
    lines = Run(created.root).logs(follow=True)
    assert [next(lines), next(lines)] == ["[1.0] one", "[1.0] the last wor"]
    with pytest.raises(RunFailed):
        next(lines)
