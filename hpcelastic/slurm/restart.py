"""Restart of an agent: the process that SLURM starts on a node runs the agent as its child and restarts a dead one.

SLURM ends a step on a node as soon as the process that it started there has ended, so that process must outlive the
agent. It opens no file, starts no thread and does not read the run's directory. docs/adr/0021 compares the
alternatives.

An agent *dies* when a signal kills it or an internal error ends it. An agent that ends with any other exit status is
not restarted, and neither is an agent whose task has received SIGTERM, SIGINT or SIGHUP.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.batch_system import STOP_SIGNALS
from hpcelastic.errors import InternalError

RESTART_DELAYS = (0.0, 1.0, 4.0, 16.0, 64.0)
"""Seconds before each restart. Another death after the last restart ends the task."""

_RESET_INTERVAL = 600.0
"""Seconds of an agent's life after which the number of restarts begins at 0 again."""

_BLOCKED_SIGNALS = {signal.SIGUSR1, signal.SIGUSR2}
"""Signals that kill a process that has no handler for them yet."""

_FORWARDED_SIGNALS = (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Restart:
    """The start of an agent; the first one has the number 0."""

    number: int = 0
    reason: str = ""
    """The reason why the agent before this one ended; empty for the first."""

    first_start: float | None = None
    """When the first agent of the task was started, in seconds of time.monotonic(); None for the first."""


FIRST = Restart()


def start_agent(delays: Sequence[float] = RESTART_DELAYS) -> Restart:
    """Fork the agent: return in a child process. The calling process never returns.

    It ends with the exit status of its last child. In the child, SIGUSR1 and SIGUSR2 are blocked until the agent has
    handlers for them, so that an earlier warning stays pending. Raises RuntimeError if the process has threads, which a
    fork would lose.
    """
    if threading.active_count() > 1:
        raise RuntimeError(
            f"an agent must be forked before any thread starts, and these are running: {threading.enumerate()}"
        )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    restart, first_start = FIRST, time.monotonic()
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        started = time.monotonic()
        missed = signal.sigpending() & _handled_signals()  # received while there was no agent
        agent = os.fork()
        if agent == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before | _BLOCKED_SIGNALS)
            return restart
        for signum in missed:
            signal.sigwait({signum})
            os.kill(agent, signum)
        status, stopped = _wait_for_end(agent)
        reason = cause_of_death(status)
        number = 0 if time.monotonic() - started > _RESET_INTERVAL else restart.number
        if reason is None or stopped:
            os._exit(_exit_status(status))
        if number == len(delays):
            _report_giving_up(reason, number)
            os._exit(_exit_status(status))
        if _stop_requested(delays[number]):
            os._exit(_exit_status(status))
        restart = Restart(number + 1, reason, first_start)


def cause_of_death(status: int) -> str | None:
    """Return why a process with this wait status has died, as a text; None if it has not died."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        return None if signum in STOP_SIGNALS else f"killed by {signal.Signals(signum).name}"
    return "internal error" if os.WEXITSTATUS(status) == InternalError.exit_code else None


def _wait_for_end(agent: int) -> tuple[int, bool]:
    """Wait for the agent's end. Return its wait status and whether the task has received a stop signal."""
    stopped = False
    while True:
        info = signal.sigwaitinfo({signal.SIGCHLD, *_handled_signals()})
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(agent, os.WNOHANG)
            if ended:
                return status, stopped or _stop_requested(0.0)
            continue
        stopped = stopped or info.si_signo in STOP_SIGNALS
        if not _reached_agent(info):
            os.kill(agent, info.si_signo)


def _stop_requested(seconds: float) -> bool:
    """Wait ``seconds`` for a stop signal. Return whether one was received, as soon as it is."""
    stop = {signum for signum in _handled_signals() if signum in STOP_SIGNALS}
    return signal.sigtimedwait(stop, seconds) is not None


def _handled_signals() -> set[int]:
    """Return the forwarded signals, without those that were ignored when this process started (nohup)."""
    return {signum for signum in _FORWARDED_SIGNALS if signal.getsignal(signum) != signal.SIG_IGN}


def _reached_agent(info: signal.struct_siginfo) -> bool:
    """Return whether the agent has received the signal too.

    SLURM signals all processes of a task, and a terminal signals all processes of its group.
    """
    if info.si_code > 0 or info.si_pid == 0:  # from the kernel, or from outside of this container
        return True
    if info.si_uid != os.getuid():  # SLURM's daemons belong to root and may be hidden in /proc
        return True
    try:
        sender = Path(f"/proc/{info.si_pid}/comm").read_text().strip()
    except OSError:  # the sender has ended; slurmstepd ends only after the task
        return False
    return sender == "slurmstepd"


def _exit_status(status: int) -> int:
    """Return the exit status as a shell does."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _report_giving_up(reason: str, number: int) -> None:
    print(
        f"hpcelastic: the agent was started again {number} times in a row, and died once more ({reason}): this node "
        "leaves the run; look for the cause in the lines above and in the node's kernel log",
        file=sys.stderr,
        flush=True,
    )
