"""The process that SLURM starts on a node, and the agent as its child."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.agent.processes import TIMEOUT, eventually

TASK = """
import json, os, signal, sys, time
from hpcelastic.slurm import restart
reset_interval, delays, acts = json.loads(sys.argv[1])
restart._RESET_INTERVAL = reset_interval
reader, writer = os.pipe()
this = restart.start_agent(delays)
os.write(writer, b".")  # each agent adds one
starts = len(os.read(reader, 99))
os.write(writer, b"." * starts)
came = []
for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(signum) == signal.SIG_DFL:
        signal.signal(signum, lambda signum, _: came.append(signal.Signals(signum).name))
blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1, signal.SIGUSR2))
print(json.dumps([this.number, this.reason, os.getpid(), sorted(blocked), this.first_start]))
sys.stdout.flush()
act = acts[min(starts, len(acts)) - 1]
if act == "wait":
    while "SIGTERM" not in came:
        time.sleep(0.01)
    print(json.dumps(came))
    sys.exit(0)
if act < 0:
    signal.signal(-act, signal.SIG_DFL) if -act != signal.SIGKILL else None
    os.kill(os.getpid(), -act)
sys.exit(act)
"""
NEVER = 10_000.0
"""Seconds; longer than any test."""

Task = subprocess.Popen[str]


@contextmanager
def task(acts: list[Any], delays: tuple[float, ...] = (0.0, 0.0), reset_interval: float = NEVER) -> Iterator[Task]:
    """A task whose agents end one after the other with these statuses, or by these negated signals. The last one
    repeats."""
    arguments = json.dumps([reset_interval, delays, acts])
    command = [sys.executable, "-c", TASK, arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def ended(process: Task) -> tuple[int, list[Any], str]:
    """Return the exit status, the output of the agents, and the standard error of the task."""
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def starts(printed: list[Any]) -> list[tuple[int, str]]:
    return [(number, reason) for number, reason, *_ in printed]


DEATHS = {
    "SIGKILL": (-signal.SIGKILL, "killed by SIGKILL"),
    "SIGSEGV": (-signal.SIGSEGV, "killed by SIGSEGV"),
    "an internal error": (70, "internal error"),
}


@pytest.mark.parametrize(("death", "reason"), DEATHS.values(), ids=DEATHS)
def test_an_agent_that_dies_is_started_again(death: int, reason: str) -> None:
    with task([death, 0]) as process:
        status, printed, _ = ended(process)
    assert (status, starts(printed)) == (0, [(0, ""), (1, reason)])
    assert [blocked for _, _, _, blocked, _ in printed] == [[signal.SIGUSR1, signal.SIGUSR2]] * 2
    assert process.pid not in [pid for _, _, pid, *_ in printed]


def test_each_restart_knows_when_the_first_agent_was_started() -> None:
    with task([70, 70, 0]) as process:
        _, printed, _ = ended(process)
    first, second, third = (start for *_, start in printed)
    assert first is None
    assert second is not None and second == third


ENDS = {"success": (0, 0), "failure": (1, 1), "a wrong input": (2, 2), "SIGTERM": (-signal.SIGTERM, 143)}


@pytest.mark.parametrize(("end", "expected"), ENDS.values(), ids=ENDS)
def test_an_agent_that_ends_is_not_started_again(end: int, expected: int) -> None:
    with task([end]) as process:
        status, printed, _ = ended(process)
    assert (status, starts(printed)) == (expected, [(0, "")])


def test_an_agent_that_dies_too_often_in_a_row_is_not_started_again() -> None:
    with task([-signal.SIGKILL]) as process:
        status, printed, errors = ended(process)
    assert (status, len(printed)) == (137, 3)
    assert "was started again 2 times in a row, and died once more (killed by SIGKILL)" in errors


def test_restarts_before_a_long_life_do_not_count() -> None:
    with task([70, 70, 70, 70, 0], reset_interval=0.0) as process:
        status, printed, _ = ended(process)
    assert (status, [number for number, _ in starts(printed)]) == (0, [0, 1, 1, 1, 1])


def test_a_signal_between_two_agents_reaches_the_next_one() -> None:
    with task([-signal.SIGKILL, "wait"], delays=(1.0,)) as process:
        assert process.stdout is not None
        _, _, agent, *_ = json.loads(process.stdout.readline())
        assert eventually(lambda: not os.path.exists(f"/proc/{agent}"))
        process.send_signal(signal.SIGUSR1)
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert ended(process)[:2] == (0, [["SIGUSR1", "SIGTERM"]])


def test_a_signal_to_stop_during_the_pause_prevents_the_next_agent() -> None:
    with task([-signal.SIGKILL], delays=(NEVER,)) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        status, printed, _ = ended(process)
    assert (status, first[0], printed) == (137, 0, [])


def test_after_a_signal_to_stop_a_dead_agent_is_not_started_again() -> None:
    with task(["wait"], delays=(0.0,)) as process:
        assert process.stdout is not None
        _, _, agent, *_ = json.loads(process.stdout.readline())
        os.kill(agent, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        os.kill(agent, signal.SIGKILL)
        assert ended(process)[:2] == (137, [])


SENDERS = {
    "to the task alone": ("python", "os.kill(task, signum)"),
    "by SLURM, to all processes of the task": ("slurmstepd", "os.killpg(task, signum)"),
}


@pytest.mark.parametrize(("sender", "call"), SENDERS.values(), ids=SENDERS)
def test_a_signal_reaches_the_agent_once(sender: str, call: str) -> None:
    with task(["wait"]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for name in ("SIGUSR1", "SIGTERM"):
            send = (
                f"import os, signal, time; open('/proc/self/comm', 'w').write('{sender}'); task = {process.pid}; "
                f"signum = signal.{name}; {call}; time.sleep(0.5)"  # it must exist when the agent reads /proc
            )
            subprocess.run([sys.executable, "-c", send], check=True)
        assert ended(process)[:2] == (0, [["SIGUSR1", "SIGTERM"]])


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with task(["wait"]) as process:
            assert process.stdout is not None
            _, _, agent, *_ = json.loads(process.stdout.readline())
            os.killpg(process.pid, signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            assert ended(process)[:2] == (0, [["SIGTERM"]])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert eventually(lambda: not os.path.exists(f"/proc/{agent}"))
