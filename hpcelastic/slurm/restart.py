"""The process that SLURM starts on a node runs the agent as its child, and starts it again when the agent dies.

SLURM ends a step on a node as soon as the process that it started there has ended, so that process must outlive the
agent. It opens no file, starts no thread and reads nothing of the run. docs/adr/0021 compares the alternatives.

An agent *dies* when a signal kills it or an internal error ends it. An agent that ends by itself, with any other exit
status, is not started again; nor is one whose task was told to stop (SIGTERM, SIGINT or SIGHUP).
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.surroundings import STOP
from hpcelastic.errors import InternalError

PAUSES = (0.0, 1.0, 4.0, 16.0, 64.0)
"""Seconds before each restart. A further death ends the task."""

_SOUND = 600.0
"""Seconds that an agent must have lived for the restarts before it to be forgotten."""

_DEADLY = {signal.SIGUSR1, signal.SIGUSR2}
"""Signals that end a process which has no handler for them yet."""

_PASSED_ON = (*STOP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Restart:
    """The start of an agent; the first one has the number 0."""

    number: int = 0
    reason: str = ""
    """What ended the agent before this one."""


FIRST = Restart()


def start_agent(pauses: Sequence[float] = PAUSES) -> Restart:
    """Return in a child process, which is to become the agent. The calling process stays behind and never returns.

    It ends as its last child did. In the child SIGUSR1 and SIGUSR2 are blocked until the agent has handlers for them,
    so that a warning that comes earlier waits for it. Raises RuntimeError if the process has threads, which a fork
    would lose.
    """
    if threading.active_count() > 1:
        raise RuntimeError(f"an agent is forked before there are threads, and there are {threading.enumerate()}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    restart = FIRST
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        started = time.monotonic()
        missed = signal.sigpending() & _heeded()  # while there was no agent that could get them
        agent = os.fork()
        if agent == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before | _DEADLY)
            return restart
        for signum in missed:
            signal.sigwait({signum})
            os.kill(agent, signum)
        status, stopped = _await(agent)
        reason = cause_of_death(status)
        number = 0 if time.monotonic() - started > _SOUND else restart.number
        if reason is None or stopped:
            os._exit(_exit_status(status))
        if number == len(pauses):
            _give_up(reason, number)
            os._exit(_exit_status(status))
        if _told_to_stop(pauses[number]):
            os._exit(_exit_status(status))
        restart = Restart(number + 1, reason)


def cause_of_death(status: int) -> str | None:
    """Why a process with this wait status has died, in words; None if it has ended as it was meant to."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        return None if signum in STOP else f"killed by {signal.Signals(signum).name}"
    return "internal error" if os.WEXITSTATUS(status) == InternalError.exit_code else None


def _await(agent: int) -> tuple[int, bool]:
    """Wait for the agent's end: its wait status, and whether the task was told to stop meanwhile."""
    stopped = False
    while True:
        info = signal.sigwaitinfo({signal.SIGCHLD, *_heeded()})
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(agent, os.WNOHANG)
            if ended:
                return status, stopped or _told_to_stop(0.0)
            continue
        stopped = stopped or info.si_signo in STOP
        if not _reaches_all(info):
            os.kill(agent, info.si_signo)


def _told_to_stop(seconds: float) -> bool:
    """Wait so long; True as soon as the task is told to stop."""
    stop = {signum for signum in _heeded() if signum in STOP}
    return signal.sigtimedwait(stop, seconds) is not None


def _heeded() -> set[int]:
    """Signals that were not ignored as this process started, as nohup has it."""
    return {signum for signum in _PASSED_ON if signal.getsignal(signum) != signal.SIG_IGN}


def _reaches_all(info: signal.struct_siginfo) -> bool:
    """Whether the agent has got the signal too: SLURM signals all processes of a task, a terminal all of its group."""
    if info.si_code > 0 or info.si_pid == 0:  # from the kernel, or from outside of this container
        return True
    if info.si_uid != os.getuid():  # SLURM's daemons are root's, and may be hidden from /proc
        return True
    try:
        sender = Path(f"/proc/{info.si_pid}/comm").read_text().strip()
    except OSError:  # it has ended, which slurmstepd does only after the task
        return False
    return sender == "slurmstepd"


def _exit_status(status: int) -> int:
    """The exit status as a shell gives it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _give_up(reason: str, number: int) -> None:
    print(
        f"hpcelastic: the agent was started again {number} times in a row, and died once more ({reason}): this node "
        "takes no further part; the lines above and the node's kernel log may say why",
        file=sys.stderr,
        flush=True,
    )
