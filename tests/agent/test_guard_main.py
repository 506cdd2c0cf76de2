import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent import guard_main
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import MARKER, boottime, kill_group, kill_marked_processes, marked_processes
from tests.agent.processes import TIMEOUT, Watched, eventually, settled, sleeper, waits, watched

WITH_GRANDCHILD = "setsid sleep 300 & echo $!; wait"
WITH_DAEMON = "(setsid sh -c 'echo $$; exec sleep 300' &); exec sleep 300"
"""The printed process has another session and has lost its parent."""

# Decisions, without processes

FOREVER = "until 99999"
SCRIPTS = {
    "the agent dies": ([(0, "group 7 0"), (1, "group 8 0"), (2, "")], ["kill [7, 8]"]),
    "the agent dies before any worker": ([(0, "")], ["kill []"]),
    "the agent dies in the middle of a line": ([(0, "group 7 0"), (1, "!group 8 0"), (2, "")], ["kill [7]"]),
    "a line arrives in parts": ([(0, "!gro"), (1, "!up 7 0\ngro"), (2, "!up 8"), (3, " 0"), (4, "")], ["kill [7, 8]"]),
    "a group has ended": ([(0, "group 7 0\ngroup 8 0\ngone 7"), (1, "")], ["kill [8]"]),
    "an unknown group has ended": ([(0, "gone 7"), (1, "")], ["kill []"]),
    "quit": ([(0, "group 7 0"), (1, "quit")], []),
    "the lease expires": ([(0, "group 7 0\nuntil 10"), (10, None), (11, "quit")], ["fenced", "kill [7]", "killed"]),
    "the lease is valid": ([(0, "group 7 0\nuntil 10"), (9.9, "until 20"), (19.9, "quit")], []),
    "a renewal that arrives too late": (
        [(0, "group 7 0\nuntil 10"), (10.1, FOREVER), (11, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "quit after the lease expired": ([(0, "group 7 0\nuntil 10"), (10.1, "quit")], ["fenced", "kill [7]", "killed"]),
    "death after the lease expired": (
        [(0, "group 7 0\nuntil 10"), (10.1, "")],
        ["fenced", "kill [7]", "killed", "kill []"],
    ),
    "no lease yet": ([(0, "group 7 0"), (99, None), (100, "quit")], []),
    "workers that a stopped agent has not announced": (
        [(0, "until 10\narm 0"), (10, None), (11, "quit")],
        ["fenced", "kill []", "killed"],
    ),
    "a start after an old observation": (
        [(0, "until 10"), (20, "until 30\narm 5"), (21, "quit")],
        ["fenced", "kill []", "killed"],
    ),
    "remaining processes while the agent removes them": (
        [(0, "until 10\narm 0\ngroup 7 0\ngone 7"), (10, None), (11, "quit")],
        ["fenced", "kill []", "killed"],
    ),
    "no process of the workers is left": ([(0, "until 10\narm 0\ngroup 7 0\ngone 7\ndisarm"), (20, "quit")], []),
    "no workers": ([(0, "until 10"), (20, None), (30, "quit")], []),
    "workers after the lease expired": (
        [(0, "until 10"), (20, "group 7 0"), (21, None), (22, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "workers under a lease that expired before its renewal": (
        [(0, "until 10"), (20, "until 30\ngroup 7 5"), (21, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "workers under a lease that expired, one renewal later": (
        [(0, "until 10"), (20, "until 30"), (25, "until 35"), (26, "group 7 5"), (27, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "workers under a lease that was renewed in time": (
        [(0, "until 10"), (9, "until 19\ngroup 7 0"), (18, "quit")],
        [],
    ),
    "workers under a lease that began after another one expired": (
        [(0, "until 10"), (20, "until 30"), (21, "until 31\ngroup 7 20.5"), (22, "quit")],
        [],
    ),
    "workers under a lease that began when another one expired": (
        [(0, "until 10"), (11, "until 20\ngroup 7 10"), (12, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "workers under the next lease after one that expired unnoticed": (
        [(0, "until 10"), (20.1, "until 30\ngroup 7 20"), (21, "quit")],
        [],
    ),
    "two workers under a lease that expired": (
        [(0, "until 10"), (20, "until 30\ngroup 7 5\ngroup 8 5"), (21, "quit")],
        ["fenced", "kill [7]", "killed", "fenced", "kill [8]", "killed"],
    ),
    "fenced once": (
        [(0, "group 7 0\nuntil 10"), (10, None), (11, None), (12, None), (13, "quit")],
        ["fenced", "kill [7]", "killed"],
    ),
    "fenced again": (
        [(0, "group 7 0\nuntil 10"), (10, None), (11, "until 20"), (11.5, "group 8 11.2"), (20, None), (21, "quit")],
        ["fenced", "kill [7]", "killed", "fenced", "kill [8]", "killed"],
    ),
}


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_decisions(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[float, str | None]], expected: list[str]
) -> None:
    """``script`` has, for each wake-up, the time and the input: None for no input, '' for the end of input."""
    moments, did, now = iter(script), [], 0.0
    data: str | None = None

    def wait(*_: object) -> tuple[list[int], list[int], list[int]]:
        nonlocal now, data
        now, data = next(moments)
        return ([] if data is None else [0]), [], []

    def read(*_: object) -> bytes:
        assert data is not None
        return data[1:].encode() if data.startswith("!") else data.encode() + (b"\n" if data else b"")

    monkeypatch.setattr(guard_main, "select", SimpleNamespace(select=wait))
    monkeypatch.setattr(
        guard_main, "os", SimpleNamespace(read=read, write=lambda fd, text: did.append(text.decode().strip()))
    )
    monkeypatch.setattr(guard_main, "boottime", lambda: now)
    monkeypatch.setattr(guard_main, "signal", SimpleNamespace(**vars(signal) | {"signal": lambda *_: None}))
    killed: list[int] = []

    def kill_all(marker: str, spare: int = 0) -> None:
        did.append(f"kill {sorted(killed)}")
        killed.clear()

    monkeypatch.setattr(guard_main, "kill_group", lambda pgid, signum: killed.append(pgid))
    monkeypatch.setattr(guard_main, "kill_marked_processes", kill_all)
    guard_main.main("marker")
    assert did == expected
    assert next(moments, None) is None


def test_a_renewal_that_is_too_late_when_it_is_read_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was stopped between the guard's reading of the clock and the message."""
    now, killed = 0.0, list[int]()
    monkeypatch.setattr(guard_main, "boottime", lambda: now)
    monkeypatch.setattr(guard_main, "os", SimpleNamespace(write=lambda fd, text: len(text)))
    monkeypatch.setattr(guard_main, "kill_group", lambda pgid, signum: killed.append(pgid))
    monkeypatch.setattr(guard_main, "kill_marked_processes", lambda marker, spare=0: None)
    watch = guard_main._Watch("marker")
    watch.handle_message("until", "10")
    watch.handle_message("group", "7", "0")
    now = 9.9
    watch.check()
    assert not killed
    now = 10.1
    watch.handle_message("until", "1000")
    assert killed == [7]


def test_the_guard_waits_until_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, waited = iter([b"until 10\n", b"group 7 0\n", b"until 15.5\n", b"gone 7\n", b"disarm\n", b""]), []

    def wait(
        _read: object, _write: object, _error: object, left: float | None
    ) -> tuple[list[int], list[int], list[int]]:
        waited.append(left)
        return [0], [], []

    monkeypatch.setattr(guard_main, "select", SimpleNamespace(select=wait))
    monkeypatch.setattr(guard_main, "os", SimpleNamespace(read=lambda *_: next(lines)))
    monkeypatch.setattr(guard_main, "boottime", lambda: 4.0)
    monkeypatch.setattr(guard_main, "signal", SimpleNamespace(**vars(signal) | {"signal": lambda *_: None}))
    monkeypatch.setattr(guard_main, "kill_marked_processes", lambda marker, spare: None)
    guard_main.main("marker")
    assert waited == [None, None, 6.0, 11.5, 11.5, None]


# Effects, with processes


@pytest.fixture
def marker() -> Iterator[str]:
    marker = f"test@{secrets.token_hex(8)}"
    yield marker
    kill_marked_processes(marker)


@contextlib.contextmanager
def guarding(marker: str) -> Iterator[Guard]:
    """A guard that is killed if the test fails."""
    with Guard(marker) as it:
        try:
            yield it
        except BaseException:
            it._process.kill()
            raise


def understood(it: Guard) -> bool:
    """Wait until the guard has handled all messages and waits again."""
    assert it._process.stdin is not None
    pipe, pid = it._process.stdin.fileno(), it._process.pid

    def idle() -> bool:
        unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
        return unread == 0 and waits(pid)

    return eventually(idle)


def await_message(it: Guard) -> bool:
    ready, _, _ = select.select([it], [], [], TIMEOUT)
    assert ready, "the guard says nothing"
    return it.handle_message()


AGENT = f"""
import json, os, select, signal, subprocess, sys
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.guard import Guard

def run_out(*_):
    guard.set_deadline(boottime())
    os.write(1, json.dumps({{"renewed": True}}).encode() + b"\\n")  # print() may be at it when the signal comes

marker, *scripts = sys.argv[1:]
guard = Guard(marker)
workers, children = [], []
for script in scripts:
    worker = subprocess.Popen(
        ["sh", "-c", script], env={{**os.environ, {MARKER!r}: marker}}, stdout=subprocess.PIPE, start_new_session=True
    )
    guard.add(worker.pid, boottime())
    workers.append(worker.pid)
    children += [int(worker.stdout.readline())] if "echo" in script else []
signal.signal(signal.SIGUSR1, run_out)
print(json.dumps({{"guard": guard._process.pid, "workers": workers, "children": children}}), flush=True)
while True:
    select.select([guard], [], [])
    print(json.dumps({{"fenced": guard.handle_message(), "guard": guard._process.pid}}), flush=True)
"""


class Agent:
    """A process with a guard and workers, like an agent."""

    def __init__(self, marker: str, *scripts: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, marker, *scripts], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self.workers: list[Watched] = []
        try:
            message = self.receive()
            self.guard = Watched(message["guard"])
            self.workers += [Watched(pid) for pid in message["workers"] + message["children"]]
            assert all(settled(pid) for pid in message["children"])
        except BaseException:
            self.close()
            raise

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        assert ready, "the agent says nothing"
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for process in [*self.workers, *([self.guard] if hasattr(self, "guard") else [])]:
            process.close()


@pytest.fixture
def agent(marker: str) -> Iterator[Agent]:
    agent = Agent(marker, "exec sleep 300", WITH_GRANDCHILD, WITH_DAEMON)
    yield agent
    agent.close()


def test_a_killed_agent_leaves_no_process(agent: Agent) -> None:
    assert all(worker.alive for worker in agent.workers) and len(agent.workers) == 5
    agent.kill()
    assert all(worker.ends() for worker in agent.workers)
    assert agent.guard.ends(), "the guard has ended too"


def test_a_killed_agent_with_a_replaced_guard_leaves_no_process(agent: Agent) -> None:
    os.kill(agent.guard.pid, signal.SIGKILL)
    message = agent.receive()
    assert message["fenced"] is False
    assert agent.guard.ends()
    with watched(message["guard"]) as (replaced,):
        assert all(worker.alive for worker in agent.workers)
        agent.kill()
        assert all(worker.ends() for worker in agent.workers)
        assert replaced.ends()


def test_workers_of_other_agents_are_not_killed(agent: Agent) -> None:
    with sleeper("other@1") as other, sleeper() as unmarked, watched(other.pid, unmarked.pid) as strangers:
        agent.kill()
        assert all(worker.ends() for worker in agent.workers)
        assert agent.guard.ends()
        assert all(stranger.alive for stranger in strangers)


def test_when_the_lease_expires_workers_die_and_the_agent_is_notified(marker: str) -> None:
    with guarding(marker) as it, sleeper(marker, script=WITH_GRANDCHILD) as worker:
        assert worker.stdout is not None
        with watched(worker.pid, int(worker.stdout.readline())) as processes:
            assert settled(processes[1].pid)
            it.add(worker.pid, boottime())
            it.set_deadline(boottime() + 0.05)
            assert await_message(it) is True
            assert all(process.ends() for process in processes)
            assert it._process.poll() is None, "the guard continues"


def test_renewals_keep_the_workers_alive(marker: str) -> None:
    with guarding(marker) as it, sleeper(marker) as worker, watched(worker.pid) as (process,):
        it.add(worker.pid, boottime())
        first = boottime() + 0.3
        it.set_deadline(first)
        for _ in range(3):
            it.set_deadline(boottime() + 1000)
        assert not process.ends(within=max(0.0, first - boottime()) + 0.1)
        it.set_deadline(boottime())
        assert process.ends()


def test_workers_started_after_the_fencing_are_not_killed(marker: str) -> None:
    with guarding(marker) as it, sleeper(marker) as stuck:
        it.add(stuck.pid, boottime())
        it.set_deadline(boottime())
        for _ in range(20):
            assert await_message(it) is True
            with sleeper(marker) as worker, watched(worker.pid) as (process,):
                it.set_deadline(boottime() + 1000)
                assert understood(it)
                it.add(worker.pid, boottime())
                assert understood(it)
                assert not process.ends(within=0.005)
                it.set_deadline(boottime())
                assert process.ends()
            it.remove(worker.pid)


def test_a_worker_that_has_ended_is_not_guarded(marker: str) -> None:
    with guarding(marker) as it, sleeper() as worker, watched(worker.pid) as (process,):
        it.add(worker.pid, boottime())
        it.remove(worker.pid)
        it.disarm()
        it.set_deadline(boottime())
        assert understood(it)
        assert process.alive and not select.select([it], [], [], 0)[0]


def test_a_node_that_was_stopped_across_the_deadline_is_fenced(marker: str) -> None:
    with guarding(marker) as it, sleeper(marker) as worker, watched(worker.pid) as (process,):
        it.add(worker.pid, boottime())
        deadline = boottime() + 0.5
        it.set_deadline(deadline)
        assert understood(it)
        os.kill(it._process.pid, signal.SIGSTOP)
        assert boottime() < deadline
        assert not process.ends(within=deadline - boottime() + 0.05)
        it.set_deadline(boottime() + 1000)
        os.kill(it._process.pid, signal.SIGCONT)
        assert await_message(it) is True
        assert process.ends()


def test_workers_started_under_an_expired_lease_are_killed_at_once(marker: str) -> None:
    """The node was stopped between the agent's check of its lease and the start. The lease was renewed since then."""
    with guarding(marker) as it, sleeper(marker) as worker, watched(worker.pid) as (process,):
        lease_from = boottime()
        it.set_deadline(lease_from)
        it.set_deadline(boottime() + 1000)
        it.add(worker.pid, lease_from)
        assert await_message(it) is True
        assert process.ends()


def test_a_replaced_guard_knows_the_lease_of_the_workers(marker: str) -> None:
    with guarding(marker) as it, sleeper() as worker, watched(worker.pid) as (process,):
        lease_from = boottime()
        it.set_deadline(lease_from)
        os.kill(it._process.pid, signal.SIGKILL)
        it.add(worker.pid, lease_from)
        assert await_message(it) is False
        assert await_message(it) is True
        assert process.ends()


def test_a_guard_does_not_keep_the_output_of_the_task_open(marker: str) -> None:
    """SLURM waits until all processes have closed it."""
    with guarding(marker) as it:
        assert os.readlink(f"/proc/{it._process.pid}/fd/2") == "/dev/null"


def test_workers_die_when_the_lease_expires_without_an_agent(marker: str) -> None:
    """The agent dies and its lease expires while the guard is stopped."""
    agent = Agent(marker, "exec sleep 300", "exec sleep 300")
    try:
        os.kill(agent.guard.pid, signal.SIGSTOP)
        agent.process.send_signal(signal.SIGUSR1)  # its last renewal, which has expired
        assert agent.receive() == {"renewed": True}
        agent.kill()
        os.kill(agent.guard.pid, signal.SIGCONT)
        assert all(worker.ends() for worker in agent.workers)
        assert agent.guard.ends()
    finally:
        agent.close()


def test_an_orderly_end_kills_no_process(marker: str) -> None:
    with sleeper(marker) as worker, watched(worker.pid) as (process,):
        with Guard(marker) as it:
            it.add(worker.pid, boottime())
            it.set_deadline(boottime() + 1000)
            ended = it._process
        assert ended.returncode == 0
        assert process.alive


def test_an_end_by_an_error_leaves_no_process(marker: str) -> None:
    with sleeper(marker) as worker, watched(worker.pid) as (process,):
        with pytest.raises(OSError, match="an error of the agent"), Guard(marker) as it:
            it.add(worker.pid, boottime())
            raise OSError("an error of the agent")
        assert process.ends()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_to_the_whole_task_do_not_end_the_guard(marker: str, signum: signal.Signals) -> None:
    with guarding(marker) as it, sleeper(marker) as worker, watched(worker.pid) as (process,):
        it.add(worker.pid, boottime())
        assert understood(it)
        os.kill(it._process.pid, signum)
        it.set_deadline(boottime())
        assert await_message(it) is True
        assert process.ends()


def test_the_replacement_of_a_dead_guard_has_its_state(marker: str) -> None:
    with guarding(marker) as it, sleeper() as first, sleeper() as gone, watched(first.pid, gone.pid) as (kept, left):
        it.add(first.pid, boottime())
        it.add(gone.pid, boottime())
        it.remove(gone.pid)
        it.set_deadline(boottime() + 0.7)
        os.kill(it._process.pid, signal.SIGKILL)
        dead = it._process
        assert await_message(it) is False
        assert it._process.pid != dead.pid and dead.returncode == -signal.SIGKILL
        assert await_message(it) is True, "the replacement knows the groups and the lease"
        assert kept.ends()
        assert left.alive


def test_a_message_to_a_dead_guard_is_no_error(marker: str) -> None:
    with guarding(marker) as it:
        os.kill(it._process.pid, signal.SIGKILL)
        with watched(it._process.pid) as (process,):
            assert process.ends()
        for pgid in (4_000_001, 4_000_002):  # beyond the largest pid
            it.add(pgid, boottime())
        it.remove(4_000_002)
        it.set_deadline(boottime() + 1000)
        assert await_message(it) is False
        assert set(it._groups) == {4_000_001}
        it.set_deadline(boottime())
        assert await_message(it) is True, "the replacement gets the messages that the dead one missed"


@pytest.fixture
def two(marker: str) -> Iterator[list[Watched]]:
    """Two processes with the mark."""
    with sleeper(marker) as first, sleeper(marker) as second, watched(first.pid, second.pid) as found:
        yield found


def test_a_spared_process_is_killed_only_with_the_agent(marker: str, two: list[Watched]) -> None:
    worker, parent = two
    with guarding(marker) as it:
        it.spare(parent.pid)
        it.add(worker.pid, boottime())
        it.set_deadline(boottime())
        assert await_message(it) is True
        assert worker.ends() and parent.alive
        os.kill(it._process.pid, signal.SIGKILL)
        assert await_message(it) is False
        it.arm(0.0)
        assert await_message(it) is True, "the replacement fences too"
        assert parent.alive, "the replacement knows the spared process"
        assert it._process.stdin is not None
        it._process.stdin.close()  # like the death of the agent
        assert parent.ends()


def test_one_process_at_a_time_is_spared(marker: str, two: list[Watched]) -> None:
    first, second = two
    with guarding(marker) as it:
        it.spare(first.pid)
        it.spare(second.pid)
        it.arm(boottime())
        it.set_deadline(boottime())
        assert await_message(it) is True
        assert first.ends() and second.alive


def test_a_guard_has_its_own_session(marker: str) -> None:
    """A SIGKILL of the agent's process group does not reach it."""
    with guarding(marker) as it:
        assert os.getsid(it._process.pid) == it._process.pid


def test_a_guard_closes_its_descriptors(marker: str) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with guarding(marker) as it:
        os.kill(it._process.pid, signal.SIGKILL)
        assert await_message(it) is False
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_guard_notices_the_agents_death_while_workers_live(marker: str) -> None:
    """Its input ends with the agent although the workers are alive, because they do not inherit the pipe."""
    with guarding(marker) as it, sleeper(marker) as worker:
        assert it._process.stdin is not None
        pipe = os.readlink(f"/proc/self/fd/{it._process.stdin.fileno()}")
        theirs = [os.readlink(entry) for entry in Path(f"/proc/{worker.pid}/fd").iterdir()]
        assert pipe not in theirs


# Processes with a marker


def test_marked_processes_are_found_in_every_session(marker: str) -> None:
    with sleeper(marker, script=WITH_GRANDCHILD) as worker, sleeper(f"{marker}0") as other:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        assert settled(child)
        found = set(marked_processes(marker))
        assert {worker.pid, child} <= found
        assert other.pid not in found, "a marker is compared completely"
        worker.kill()
        with watched(worker.pid) as (process,):
            assert process.ends()
        assert set(marked_processes(marker)) == {child}, "a zombie has no environment"


def test_killing_reaches_processes_spawned_meanwhile(marker: str) -> None:
    spawner = "echo started; i=0; while [ $i -lt 500 ]; do sleep 300 & i=$((i+1)); done; wait"
    with sleeper(marker, script=spawner) as worker, watched(worker.pid) as (process,):
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"started\n"
        kill_marked_processes(marker)
        assert process.ends()
        assert eventually(lambda: not list(marked_processes(marker)))


def test_killing_reaches_a_process_during_an_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[], [7], [], [], [8]])
    killed: list[int] = []
    monkeypatch.setattr(guard_main, "marked_processes", lambda marker, without: next(looks))
    monkeypatch.setattr(guard_main, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(guard_main, "os", SimpleNamespace(kill=lambda pid, signum: killed.append(pid)))
    kill_marked_processes("marker")
    assert killed == [7]


def test_killing_without_marked_processes_kills_none(marker: str) -> None:
    with sleeper(f"another-{marker}") as other, watched(other.pid) as (process,):
        kill_marked_processes(marker)
        assert process.alive


def test_a_missing_group_is_no_error() -> None:
    gone = subprocess.Popen(["true"], start_new_session=True)
    gone.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(gone.pid, 0)
    kill_group(gone.pid, 0)


def test_a_signal_reaches_the_whole_group() -> None:
    with sleeper(script="sleep 300 & echo $!; wait") as worker:
        assert worker.stdout is not None
        with watched(worker.pid, int(worker.stdout.readline())) as processes:
            kill_group(worker.pid, signal.SIGTERM)
            assert all(process.ends() for process in processes)
