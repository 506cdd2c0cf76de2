"""A worker group is parked at the end of its round, and resumed as the group of another round."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent import workers
from hpcelastic.agent.early_workers import EarlyWorkers
from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import boottime, kill_marked_processes
from hpcelastic.agent.settings import AgentSettings, Entrypoint, LogSettings
from hpcelastic.agent.worker import FreshProcess, WorkerResources
from hpcelastic.agent.worker_channels import WorkerChannels
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.ipc.worker_channel import Message, WorkerChannel
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths
from tests.agent.test_workers import gone
from tests.cli.shell import TIMEOUT, eventually

ROUND_1 = Assignment(1, 0, 1, 0, 2, 2, "127.0.0.1", 1, "", 0, 2)
ROUND_2 = replace(ROUND_1, round=2, first_rank=4, world_size=6)

SCRIPT = """
import json, os, subprocess, sys, time
from hpcelastic.ipc.worker_channel import Park, Parked, WorkerChannel
me = os.environ["HPCELASTIC_LOCAL_RANK"]
def note(name, text=""):
    open(name + me + ".draft", "w").write(text)
    os.rename(name + me + ".draft", name + me)
if "fails" in sys.argv:
    sys.exit(3)
channel = WorkerChannel.connect(os.environ["HPCELASTIC_WORKER_CHANNEL"])
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
note("ready", str(child.pid))
if "waits" in sys.argv:
    channel.send(Parked(0))
while (received := channel.receive(wait=True)) is not None:
    message, fds = received
    if isinstance(message, Park):
        if me not in sys.argv[1:]:
            channel.send(Parked(message.round))
    else:
        os.write(fds[0], b"to the log of the new round\\n")
        note("resumed", json.dumps(dict(message.environ)))
"""


class Groups:
    """Groups of two workers on one node. Workers with the local ranks ``stubborn`` do not park."""

    def __init__(
        self, directory: Path, guard: Guard, facts: RunFacts, channels: WorkerChannels, loop: EventLoop
    ) -> None:
        self.directory, self.guard, self.channels, self.facts = directory, guard, channels, facts
        self.resources = WorkerResources(guard, channels=channels)
        self.loop = loop
        self.received: Callable[[int], None] = lambda pid: None
        """Called with the process id of a worker that has sent a message."""

        self.arguments: tuple[str, ...] = ()
        """The arguments of the workers."""

        self.offers: list[list[int]] = []
        """The local ranks that were starting, at each change of early workers."""

    def start(self, *stubborn: str) -> WorkerGroup:
        group = self.group(ROUND_1, *stubborn)
        group.start(os.environ, boottime())
        eventually(lambda: all((self.directory / f"ready{rank}").exists() for rank in (0, 1)))
        return group

    def early(self) -> EarlyWorkers:
        """Return early workers, which get the messages."""
        early = EarlyWorkers(self.loop, self.group, lambda: self.offers.append(sorted(early.starting)), print)
        self.received = early.note_parked
        return early

    def turn(self, done: Callable[[], bool]) -> None:
        """Handle events until ``done``."""
        deadline = time.monotonic() + TIMEOUT
        while not done():
            assert time.monotonic() < deadline
            self.loop.turn(0.1, first=self.guard)

    def group(self, part: Assignment, *arguments: str) -> WorkerGroup:
        entrypoint = Entrypoint(script="work.py", args=arguments or self.arguments)
        settings = AgentSettings(entrypoint, logs=LogSettings("both"))
        return WorkerGroup(part, settings, self.facts, self.resources)

    def child(self, local_rank: int) -> int:
        """Return the process id of the program that a worker has started."""
        return int((self.directory / f"ready{local_rank}").read_text())


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(SCRIPT)
    (tmp_path / "run").mkdir(mode=0o700)
    loop = EventLoop()
    channels = WorkerChannels(loop)
    facts = RunFacts(RunPaths(tmp_path / "run"), "r", f"n@0-{os.getpid()}", 3, worker_channel=channels.name)
    with Guard(facts.node) as guard:
        try:
            groups = Groups(tmp_path, guard, facts, channels, loop)
            channels.serve(lambda pid: True, lambda pid, message: groups.received(pid))
            yield groups
        finally:
            kill_marked_processes(facts.node)
            channels.close()


def pids(group: WorkerGroup) -> dict[int, int]:
    return {worker.local_rank: worker.process.pid for worker in group.running.values()}


def test_parked_workers_are_resumed_in_the_next_round(groups: Groups) -> None:
    first = groups.start()
    before = pids(first)
    assert first.park(grace=30, stop_grace=0) == []
    assert (pids(first), first.ended) == (before, True)
    second = groups.group(ROUND_2)
    second.start(os.environ, boottime(), first)
    assert (pids(second), second.resumed, first.running) == (before, [4, 5], {})
    eventually(lambda: (groups.directory / "resumed1").exists())
    changed = json.loads((groups.directory / "resumed1").read_text())
    assert (changed["RANK"], changed["HPCELASTIC_ROUND"], changed["WORLD_SIZE"]) == ("5", "2", "6")
    assert "LOCAL_RANK" not in changed
    log = RunPaths(groups.directory / "run").log(2, 5, "out")
    assert log.read_text() == "to the log of the new round\n"


def test_a_worker_that_does_not_park_in_time_is_killed_with_its_children(groups: Groups) -> None:
    group = groups.start("1")
    before = pids(group)
    assert group.park(grace=0.5, stop_grace=0) == []
    assert pids(group) == {0: before[0]}
    assert gone(before[1]) and gone(groups.child(1))
    assert not gone(before[0]) and not gone(groups.child(0))


def test_without_grace_no_worker_is_parked(groups: Groups) -> None:
    group = groups.start()
    assert group.park(grace=0, stop_grace=0) == []
    assert pids(group) == {}


def test_a_parked_worker_that_has_died_is_started_anew(groups: Groups) -> None:
    first = groups.start()
    before = pids(first)
    first.park(grace=30, stop_grace=0)
    os.kill(before[1], signal.SIGKILL)
    eventually(lambda: gone(before[1]))
    second = groups.group(ROUND_2)
    second.start(os.environ, boottime(), first)
    after = pids(second)
    assert (after[0], second.resumed) == (before[0], [4])
    assert after[1] != before[1]


def test_the_guard_watches_a_worker_before_the_worker_is_resumed(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = groups.start()
    first.park(grace=30, stop_grace=0)
    calls: list[str] = []
    send = WorkerChannel.send

    def sent(channel: WorkerChannel, message: Message, fds: tuple[int, ...] = ()) -> bool:
        calls.append(type(message).__name__)
        return send(channel, message, fds)

    monkeypatch.setattr(groups.guard, "arm", lambda lease_from: calls.append("arm"))
    monkeypatch.setattr(groups.guard, "add", lambda pid, lease_from: calls.append("watch"))
    monkeypatch.setattr(WorkerChannel, "send", sent)
    groups.group(ROUND_2).start(os.environ, boottime(), first)
    assert calls == ["arm", "watch", "Resume", "watch", "Resume"]


def test_parked_workers_are_stopped_like_others(groups: Groups) -> None:
    group = groups.start()
    before = pids(group)
    group.park(grace=30, stop_grace=0)
    assert group.stop(grace=0) == []
    assert all(gone(pid) for pid in (*before.values(), groups.child(0), groups.child(1)))


# Workers that start before they have a place in a round


def test_an_early_worker_that_waits_takes_part_in_the_next_round(groups: Groups) -> None:
    groups.arguments = ("waits",)
    early = groups.early()
    early.start(ROUND_1, [1], os.environ)
    assert (early.starting, early.waiting) == ({1}, set())
    groups.turn(lambda: bool(early.waiting))
    assert (early.starting, groups.offers) == (set(), [[]])
    (waits,) = groups.resources.outside
    second = groups.group(replace(ROUND_2, local_world_size=1, seats=(1,)))
    second.start(os.environ, boottime(), *early.hand_over([1]))
    assert (pids(second), second.resumed, early.waiting) == ({1: waits}, [4], set())
    assert groups.resources.outside == {}
    eventually(lambda: (groups.directory / "resumed1").exists())


def test_an_early_worker_survives_the_end_of_another_round(groups: Groups) -> None:
    groups.arguments = ("waits",)
    early = groups.early()
    first = groups.group(replace(ROUND_1, local_world_size=1))
    first.start(os.environ, boottime())
    early.start(ROUND_1, [1], os.environ)
    groups.turn(lambda: bool(early.waiting))
    (waits,) = groups.resources.outside
    first.stop(grace=0)
    assert not gone(waits) and not gone(groups.child(1))
    early.stop()
    assert gone(waits) and not early.waiting


def test_a_round_replaces_a_worker_that_is_still_starting(groups: Groups) -> None:
    early = groups.early()
    early.start(ROUND_1, [0, 1], os.environ)
    starts = dict(groups.resources.outside)
    second = groups.group(ROUND_2)
    second.start(os.environ, boottime(), *early.hand_over([0, 1]))
    assert all(gone(pid) for pid in starts) and not set(starts) & set(pids(second).values())
    assert not second.resumed


@pytest.mark.parametrize("killed", [False, True])
def test_a_script_that_fails_is_not_started_early_again(groups: Groups, killed: bool) -> None:
    groups.arguments = () if killed else ("fails",)
    early = groups.early()
    early.allow(True)
    early.start(ROUND_1, [1], os.environ)
    (pid,) = groups.resources.outside
    if killed:
        os.kill(pid, signal.SIGKILL)
    groups.turn(lambda: not early.starting)
    assert early.allowed == killed
    assert groups.resources.outside == {} and groups.offers == [[]]


class UnansweredRequest:
    """A spawn request that the fork server does not fulfil."""

    def __init__(self) -> None:
        self._end, other = socket.socketpair()
        other.close()

    def fileno(self) -> int:
        return self._end.fileno()

    def process(self) -> None:
        return None

    def cancel(self) -> None:
        self._end.close()

    expire = cancel


@pytest.mark.parametrize("forked", [False, True])
def test_an_early_start_that_is_impossible_leaves_the_worker_to_the_next_round(
    groups: Groups, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(workers.subprocess, "Popen", refuse)
    if forked:
        server: Any = SimpleNamespace(request_spawn=UnansweredRequest)
        groups.resources = replace(groups.resources, fork_server=server)
    early = groups.early()
    early.allow(True)
    assert early.start(ROUND_1, [1], os.environ) == ([1] if forked else [])
    groups.turn(lambda: not early.starting)
    assert not early.allowed and early.begun and not early.waiting
    assert groups.resources.outside == {} and groups.offers == ([[]] if forked else [])


def test_an_early_start_for_which_no_thread_can_start_is_reported(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server: Any = SimpleNamespace(request_spawn=UnansweredRequest)
    groups.resources = replace(groups.resources, fork_server=server)
    early = groups.early()
    early.allow(True)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert early.start(ROUND_1, [1], os.environ) == []
    assert not early.allowed and early.begun and not early.starting
    assert "can't start new thread; the next round starts it" in capsys.readouterr().out


class FulfilledRequest(UnansweredRequest):
    """A spawn request with a process."""

    def process(self) -> Any:
        return FreshProcess(subprocess.Popen(["sleep", "1000"]))


@pytest.mark.parametrize("spawned", [False, True])
def test_a_worker_for_which_no_descriptor_is_left_does_not_stay(
    groups: Groups, spawned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a descriptor, nothing would notice its end."""
    made = list[int]()

    def refuse(pid: int) -> None:
        made.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    if spawned:
        server: Any = SimpleNamespace(request_spawn=FulfilledRequest)
        groups.resources = replace(groups.resources, fork_server=server)
    early = groups.early()
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert early.start(ROUND_1, [1], os.environ) == ([1] if spawned else [])
    groups.turn(lambda: not early.starting)
    (pid,) = made
    assert not Path(f"/proc/{pid}").exists(), "it was killed and reaped"
    assert "Too many open files; the next round starts it" in capsys.readouterr().out


def test_the_output_of_an_early_worker_has_a_log_of_its_own(groups: Groups) -> None:
    groups.arguments = ("fails",)
    early = groups.early()
    early.start(ROUND_1, [1], os.environ)
    groups.turn(lambda: not early.starting)
    node = groups.facts.node.partition("@")[0]
    assert RunPaths(groups.directory / "run").early_log(node, 1, "err").exists()
    assert not RunPaths(groups.directory / "run").log(1, 1, "err").exists()
