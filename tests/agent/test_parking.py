"""A worker group is parked at the end of its round, and resumed as the group of another round."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import boottime, kill_marked_processes
from hpcelastic.agent.settings import AgentSettings, Entrypoint, LogSettings
from hpcelastic.agent.worker_channels import WorkerChannels
from hpcelastic.agent.workers import WorkerGroup, WorkerResources
from hpcelastic.ipc.worker_channel import Message, WorkerChannel
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths
from tests.agent.test_workers import gone
from tests.cli.shell import eventually

ROUND_1 = Assignment(1, 0, 1, 0, 2, 2, "127.0.0.1", 1, "", 0, 2)
ROUND_2 = replace(ROUND_1, round=2, first_rank=4, world_size=6)

SCRIPT = """
import json, os, subprocess, sys, time
from hpcelastic.ipc.worker_channel import Park, Parked, WorkerChannel
me = os.environ["HPCELASTIC_LOCAL_RANK"]
def note(name, text=""):
    open(name + me + ".draft", "w").write(text)
    os.rename(name + me + ".draft", name + me)
channel = WorkerChannel.connect(os.environ["HPCELASTIC_WORKER_CHANNEL"])
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
note("ready", str(child.pid))
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

    def __init__(self, directory: Path, guard: Guard, facts: RunFacts, channels: WorkerChannels) -> None:
        self.directory, self.guard, self.channels, self._facts = directory, guard, channels, facts
        self.resources = WorkerResources(guard, channels=channels)

    def start(self, *stubborn: str) -> WorkerGroup:
        (self.directory / "work.py").write_text(SCRIPT)
        group = self.group(ROUND_1, *stubborn)
        group.start(os.environ, boottime())
        eventually(lambda: all((self.directory / f"ready{rank}").exists() for rank in (0, 1)))
        return group

    def group(self, part: Assignment, *arguments: str) -> WorkerGroup:
        entrypoint = Entrypoint(script="work.py", args=arguments)
        settings = AgentSettings(entrypoint, logs=LogSettings("both"))
        return WorkerGroup(part, settings, self._facts, self.resources)

    def child(self, local_rank: int) -> int:
        """Return the process id of the program that a worker has started."""
        return int((self.directory / f"ready{local_rank}").read_text())


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    monkeypatch.chdir(tmp_path)
    channels = WorkerChannels(EventLoop())
    channels.serve(lambda pid: True, lambda pid, message: None)
    facts = RunFacts(RunPaths(tmp_path / "run"), "r", f"n@0-{os.getpid()}", 3, worker_channel=channels.name)
    with Guard(facts.node) as guard:
        try:
            yield Groups(tmp_path, guard, facts, channels)
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
