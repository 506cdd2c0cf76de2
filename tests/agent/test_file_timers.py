"""Timers of a worker group, set by real processes: who is sent a signal, which one, and what is reported."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcelastic.agent.file_timers import FileTimers
from hpcelastic.agent.timer_pipe import TimerPipe
from hpcelastic.agent.worker import Worker
from hpcelastic.protocol.events import TimerExpired
from tests.agent.processes import sleeper, watched

ROUND, RANK = 2, 5
HANGS = "exec sleep 300"
FAMILY = "sleep 300 & echo $!; wait"
"""A worker that tells the process id of its child."""

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1; done"


@dataclass
class Served:
    """What an agent has: a pipe, timers, and what they have logged and reported."""

    pipe: TimerPipe
    events: list[TimerExpired] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    grace: float = 300.0

    def __post_init__(self) -> None:
        self.timers = FileTimers(self.pipe, self.grace, self.events.append, self.reports.append)

    def begin(self, process: "subprocess.Popen[bytes]") -> Worker:
        """Let the group of the round consist of one worker."""
        worker = Worker(RANK, 1, cast(Any, process), -1, Path(), None)
        self.timers.begin(cast(Any, SimpleNamespace(part=SimpleNamespace(round=ROUND), running={0: worker})))
        return worker

    def set(self, pid: int, seconds: float = 0.0, scope: str = "save", signum: int = signal.SIGKILL) -> None:
        self.request(pid, scope, time.time() + seconds, signum)

    def release(self, pid: int, scope: str = "save") -> None:
        self.request(pid, scope, -1, 0)

    def request(self, pid: int, scope: str, expiration_time: float, signum: int) -> None:
        """Write what torch's client writes."""
        request = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expiration_time, "signal": signum}
        fd = os.open(self.timers.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, json.dumps(request).encode() + b"\n")
        os.close(fd)
        self.timers.receive()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(TimerPipe(tmp_path / "pipe"))
    yield made
    made.timers.close()


@contextlib.contextmanager
def worker(served: Served, script: str = HANGS) -> "Iterator[tuple[subprocess.Popen[bytes], Worker]]":
    with sleeper(script=script) as process:
        yield process, served.begin(process)


def first_line(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def expired(pid: int, scope: str = "save", sent: str | None = "SIGKILL") -> TimerExpired:
    return TimerExpired(round=ROUND, rank=RANK, pid=pid, scope=scope, sent=sent)


def test_a_worker_is_killed_when_its_timer_expires(served: Served) -> None:
    with worker(served) as (process, ours):
        served.set(process.pid)
        assert served.timers.seconds_left() == 0.0
        served.timers.expire()
        assert process.wait() == -signal.SIGKILL
        assert served.events == [expired(process.pid)]
        report = f"rank 5: the timer 'save' has expired; sending SIGKILL to process {process.pid}"
        assert served.reports == [report]
        assert served.timers.describe_expired(ours) == " (the timer 'save' had expired)"
        assert served.timers.seconds_left() is None


def test_before_its_time_a_timer_has_no_effect(served: Served) -> None:
    with worker(served) as (process, ours):
        served.set(process.pid, seconds=1000)
        left = served.timers.seconds_left()
        assert left is not None and 0 < left <= 1000
        served.timers.expire()
        assert process.poll() is None
        assert (served.events, served.timers.describe_expired(ours)) == ([], "")


def test_the_next_timer_decides_how_long_to_wait(served: Served) -> None:
    with worker(served) as (process, _):
        served.set(process.pid, 1000, "outer")
        served.set(process.pid, 10, "inner")
        left = served.timers.seconds_left()
        assert left is not None and left <= 10
        served.release(process.pid, "inner")
        left = served.timers.seconds_left()
        assert left is not None and left > 10


@pytest.mark.parametrize("when", [float("inf"), 1e308])
def test_a_timer_that_never_expires_can_be_waited_for(served: Served, when: float) -> None:
    with worker(served) as (process, _):
        served.request(process.pid, "save", when, signal.SIGKILL)
        left = served.timers.seconds_left()
        assert left is not None and left <= 3600


def test_a_timer_that_was_released_has_no_effect(served: Served) -> None:
    with worker(served) as (process, _):
        served.set(process.pid)
        served.release(process.pid)
        served.release(process.pid)
        assert served.timers.seconds_left() is None
        served.timers.expire()
        assert process.poll() is None


def test_a_release_counts_that_is_still_in_the_pipe(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(served) as (process, _):
        served.set(process.pid)
        with monkeypatch.context() as patch:
            patch.setattr(served.timers, "receive", lambda: None)
            served.release(process.pid)
        served.timers.expire()
        assert process.poll() is None
        assert served.events == []


def test_a_timer_that_is_set_again_is_longer(served: Served) -> None:
    with worker(served) as (process, _):
        served.set(process.pid)
        served.set(process.pid, 1000)
        served.timers.expire()
        assert process.poll() is None


# Whose timers


def test_a_process_that_a_worker_has_started_has_timers(served: Served) -> None:
    with worker(served, FAMILY) as (process, ours), watched(int(first_line(process))) as (child,):
        served.set(child.pid)
        served.timers.expire()
        assert child.ends()
        assert process.wait() == 0  # the shell goes on after its child
        assert served.events == [expired(child.pid)]
        assert "'save'" in served.timers.describe_expired(ours)


def test_a_process_of_anybody_else_is_left_alone(served: Served) -> None:
    with worker(served), sleeper() as other:
        for pid in (other.pid, os.getpid(), 1, 0, -1, 2**80):
            served.set(pid)
        served.timers.expire()
        assert other.poll() is None
        assert served.events == []
        assert served.reports == [
            f"a request for a timer is ignored: process {other.pid} does not descend from a worker of this node"
        ]


def test_a_worker_of_an_earlier_group_has_no_timers(served: Served) -> None:
    with worker(served) as (before, _):
        served.set(before.pid)
        served.timers.end()
        with worker(served) as (process, _):
            served.set(before.pid)
            assert served.timers.seconds_left() is None
            served.timers.expire()
            assert (before.poll(), process.poll()) == (None, None)


def test_the_timers_of_a_process_that_has_ended_are_dropped(served: Served) -> None:
    with worker(served) as (process, ours):
        served.set(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which accepts signals
        served.timers.expire()
        served.set(process.pid)
        process.wait()
        served.set(process.pid)
        assert served.timers.seconds_left() is None
        assert (served.events, served.reports, served.timers.describe_expired(ours)) == ([], [], "")


def test_no_descriptor_is_left(served: Served) -> None:
    before = os.listdir("/proc/self/fd")
    with worker(served, FAMILY) as (process, _), sleeper() as other, watched(int(first_line(process))) as (child,):
        open_ = os.listdir("/proc/self/fd")
        for _ in range(3):
            served.set(process.pid)
            served.set(other.pid)
            served.release(process.pid)
        assert os.listdir("/proc/self/fd") == open_
        served.set(process.pid)
        served.set(child.pid)
        served.timers.end()
        assert os.listdir("/proc/self/fd") == open_
    assert os.listdir("/proc/self/fd") == before


# Signals


def test_a_process_that_survives_its_signal_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    served = Served(TimerPipe(tmp_path / "pipe"), grace=0.0)
    with contextlib.closing(served.timers), worker(served, STUBBORN) as (process, _):
        assert first_line(process) == "ready"
        served.set(process.pid, signum=signal.SIGTERM)
        served.timers.expire()
        assert process.poll() is None
        served.timers.expire()
        assert process.wait() == -signal.SIGKILL
        assert served.events == [expired(process.pid, sent="SIGTERM"), expired(process.pid)]


def test_a_process_that_leaves_the_block_after_the_signal_goes_on(tmp_path: Path) -> None:
    served = Served(TimerPipe(tmp_path / "pipe"), grace=0.0)
    with contextlib.closing(served.timers), worker(served, STUBBORN) as (process, _):
        assert first_line(process) == "ready"
        served.set(process.pid, signum=signal.SIGTERM)
        served.timers.expire()
        served.release(process.pid)
        served.timers.expire()
        assert process.poll() is None
        assert served.events == [expired(process.pid, sent="SIGTERM")]


def test_the_grace_time_is_kept(served: Served) -> None:
    with worker(served, STUBBORN) as (process, _):
        assert first_line(process) == "ready"
        served.set(process.pid, signum=signal.SIGTERM)
        served.timers.expire()
        left = served.timers.seconds_left()
        assert left is not None and 0 < left <= served.grace


@pytest.mark.parametrize("signum", [0, -1])
def test_a_timer_without_a_signal_is_only_logged(served: Served, signum: int) -> None:
    with worker(served) as (process, ours):
        served.set(process.pid, 1000, "outer")
        served.set(process.pid, signum=signum)
        served.timers.expire()
        assert process.poll() is None
        assert served.events == [expired(process.pid, sent=None)]
        assert served.timers.describe_expired(ours) == ""
        assert served.timers.seconds_left() is not None  # that of the outer timer


def test_of_several_expired_timers_the_first_is_named(served: Served) -> None:
    with worker(served) as (process, _):
        served.set(process.pid, -1, "second")
        served.set(process.pid, -2, "first")
        served.timers.expire()
        assert process.wait() == -signal.SIGKILL
        assert served.events == [expired(process.pid, "first")]


def test_a_long_name_is_cut_where_people_read_it(served: Served) -> None:
    with worker(served) as (process, ours):
        served.set(process.pid, scope="a\n" * 1000)
        served.timers.expire()
        assert served.events == [expired(process.pid, "a\n" * 1000)]
        for text in (*served.reports, served.timers.describe_expired(ours)):
            assert len(text) < 400
            assert "\n" not in text


# Requests that cannot be read


def test_only_the_first_request_that_is_ignored_is_reported(served: Served) -> None:
    with worker(served) as (process, _):
        fd = os.open(served.timers.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"nonsense " * 100 + b"\n{}\n")
        os.close(fd)
        served.set(process.pid)
        served.timers.expire()
        assert process.wait() == -signal.SIGKILL
        (ignored, _) = served.reports
        assert ignored.startswith("a request for a timer is ignored: ")


def test_without_a_pipe_there_is_nothing_to_wait_for() -> None:
    timers = FileTimers(None, 0.0, lambda _: None, print)
    timers.receive()
    timers.expire()
    timers.end()
    timers.close()
    assert (timers.path, timers.seconds_left()) == ("", None)


@pytest.mark.slow
def test_the_client_of_torch_is_understood(served: Served) -> None:
    timer = pytest.importorskip("torch.distributed.elastic.timer")
    client = timer.FileTimerClient(served.timers.path, signal.SIGUSR1)
    served.begin(cast(Any, SimpleNamespace(pid=os.getpid())))
    with timer.expires(after=1000, scope="outer", client=client):
        served.timers.receive()
        left = served.timers.seconds_left()
        assert left is not None and 900 < left <= 1000
        with timer.expires(after=0, scope="inner", client=client):
            received: list[int] = []
            before = signal.signal(signal.SIGUSR1, lambda signum, _: received.append(signum))
            served.timers.receive()
            served.timers.expire()
            signal.signal(signal.SIGUSR1, before)
            assert received == [signal.SIGUSR1]
            assert [(event.scope, event.sent) for event in served.events] == [("inner", "SIGUSR1")]
        served.timers.receive()
        left = served.timers.seconds_left()
        assert left is not None and left > 900
    served.timers.receive()
    assert served.timers.seconds_left() is None
