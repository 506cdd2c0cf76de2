"""The agent's end of its warm parent; see `hpcelastic.worker.warm`.

A worker is asked for with `Warm.birth`, which returns at once. Its line turns readable when the newborn is there, a
child of ours that waits for its order, or when there will be none; then it is for a fresh interpreter to be the worker.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import hpcelastic.worker
from hpcelastic.agent.guarded import Guard

_PROGRAM = str(Path(hpcelastic.worker.__file__).with_name("warm.py"))

_LIVES = 3
"""How often a warm parent that died is replaced."""

_ORDER_PATIENCE = 5.0
"""Seconds in which a newborn takes its order in; it waits for nothing else."""

_LOADING = 60.0
"""Seconds for which a newcomer waits for its imports before it joins a round that runs."""

_END_PATIENCE = 1.0
"""Seconds that the end of a killed parent is waited for; a filesystem that hangs may hold it."""

_SUBREAPER_SET, _SUBREAPER_GET = 36, 37  # prctl(2), <linux/prctl.h>


def shell_prefix(ignored: Iterable[str]) -> list[str]:
    """What begins a command line so that the signals named are ignored from the start, and for good unless handled.

    A shell does it on its way to exec: Python could only before a fork, for the agent as well. And who starts a process
    waits until it has been exec'd, which a shell of this machine is at once, and a Python on a shared filesystem that
    hangs is not.
    """
    names = " ".join(name.removeprefix("SIG") for name in ignored)
    trap = f"trap '' {names}; " if names else ""
    return ["/bin/sh", "-c", f'{trap}exec "$@"', "sh"]


@dataclass(frozen=True)
class Order:
    """What a newborn is to become: ``python -u`` with ``words``, and the numbers of ``fds`` as its last arguments."""

    words: Sequence[str]
    environ: Mapping[str, str]
    stdout: int
    stderr: int
    ignored: Sequence[str] = ()
    """Signals that it ignores from the start."""

    fds: Sequence[int] = ()


class Newborn:
    """A child of ours, whatever it is by now; what `subprocess.Popen` is for one that was exec'd."""

    def __init__(self, pid: int, kin: set[int]) -> None:
        self.pid = pid
        self._kin = kin
        kin.add(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reap it: its exit status, or minus the signal that ended it."""
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            status = 255  # somebody else has reaped it: that must not pass for a success
        self._kin.discard(self.pid)
        return status


class Birth:
    """A process that the warm parent was asked for; readable when it is there, or won't be."""

    def __init__(self, line: socket.socket, kin: set[int], poisoned: Callable[[str], None]) -> None:
        self._line = line
        self._kin = kin
        self._poisoned = poisoned
        self._process: Newborn | None = None

    def fileno(self) -> int:
        return self._line.fileno()

    def process(self) -> Newborn | None:
        """The newborn, which waits for its order; None if there is none. To be asked when readable."""
        if self._process is None:
            with contextlib.suppress(OSError):
                said = self._line.recv(4096, socket.MSG_DONTWAIT).decode().strip()
                if said.isdigit():
                    self._process = Newborn(int(said), self._kin)
                elif said:
                    self._poisoned(said.removeprefix("poisoned "))
        return self._process

    def order(self, order: Order) -> bool:
        """Let the newborn go; False if it has ended, or does not take its order: cancelled, before any user's code."""
        told = {"words": list(order.words), "environ": dict(order.environ), "ignored": list(order.ignored)}
        data, fds = json.dumps(told).encode() + b"\n", [order.stdout, order.stderr, *order.fds]
        assert self._process is not None
        try:
            with self._line:
                self._line.settimeout(_ORDER_PATIENCE)
                rest = data[socket.send_fds(self._line, [data], fds) :]
                if rest:  # nothing may fail once the last byte, which ends the order, is on its way
                    self._line.sendall(rest)
        except OSError:
            self.cancel()
            return False
        return True

    @property
    def failed(self) -> bool:
        """Whether it is known by now that there will be none, or none any more."""
        poll = select.poll()
        poll.register(self._line, select.POLLRDHUP)
        return bool(poll.poll(0))

    def give_up(self) -> None:
        """Wait no longer: the line turns readable, with what has come."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """Nobody wants it any more: who is there is ended and reaped, who is on the way ends by itself."""
        process, self._process = self.process(), None
        self._line.close()
        if process is not None:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class WarmSettings:
    """What a warm parent is, for as long as the agent lives."""

    preload: Sequence[str]
    words: Sequence[str]
    """The command line of the workers, after ``python -u``."""

    environ: Mapping[str, str]
    """What is the same in the environment of every worker, the agent's mark included."""

    keep_fds: Sequence[int] = ()
    """Descriptors that every process inherits."""


@dataclass(frozen=True)
class _Parent:
    """A running parent."""

    process: "subprocess.Popen[bytes]"
    control: socket.socket


class Warm:
    """The warm parent of this node, replaced when it dies; ``report`` is given lines for a person, each once.

    Orphans become our children as long as it is there: see PR_SET_CHILD_SUBREAPER in prctl(2).
    """

    def __init__(self, settings: WarmSettings, guard: Guard, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._guard = guard
        self._report = report
        self._lives = _LIVES
        self._fit = True
        self.loading = True
        """True while the first parent imports what the workers need, for a minute at most."""

        self._overdue = threading.Timer(_LOADING, self._loaded)
        self._overdue.daemon = True
        self._overdue.start()
        self._said: set[str] = set()
        self._parked: list[Birth] = []
        self._kin: set[int] = set()
        """Children of ours for which somebody waits."""

        self._parent: _Parent | None = None
        self._before = _children()
        """Children of this process that are no concern of the agent's, where it is not a process of its own."""

        self._adopted = True
        """Whether orphans became our children before there was a parent."""

        try:
            self._adopted = _set_subreaper(True)
        except OSError as error:
            self._loaded()
            self._say(f"newborns cannot be adopted: {error}; workers start in fresh interpreters")
        else:
            self._start()

    def __enter__(self) -> "Warm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._overdue.cancel()
        for birth in self._parked:
            birth.cancel()
        self._end()
        if not self._adopted:
            _set_subreaper(False)

    @property
    def pid(self) -> int | None:
        """The parent's process, if there is one."""
        return self._parent.process.pid if self._parent is not None else None

    def fileno(self) -> int:
        """Readable when `heard` has something to take in; only while there is a parent: see `pid`."""
        assert self._parent is not None
        return self._parent.control.fileno()

    def heard(self) -> None:
        """Take the parent's word in, or its end; afterwards there may be another parent, or none."""
        assert self._parent is not None
        try:
            said = _last_word(self._parent.control)
        except BlockingIOError:
            return
        self._loaded()
        if said.startswith("poisoned "):
            self.poisoned(said.removeprefix("poisoned "))
        elif not said:
            self._died()

    def _loaded(self) -> None:
        self.loading = False
        self._overdue.cancel()

    def poisoned(self, reason: str) -> None:
        """No fork of the parent is to be trusted: there is none from now on."""
        if self._fit:
            self._say(f"{reason}: workers start in fresh interpreters, which takes longer (workers.preload)")
        self._fit = False
        if self._parent is not None:
            self._parent.control.shutdown(socket.SHUT_RDWR)  # `heard` takes its end in

    def birth(self) -> Birth | None:
        """Ask for a process; None if there is no parent. See `Birth`."""
        while self._parked:
            birth = self._parked.pop()
            if not birth.failed:
                return birth
            birth.cancel()
        return self._asked()

    def park(self, count: int) -> None:
        """Have ``count`` newborns wait, for a fork of a large process takes its time; births take these first."""
        kept = [birth for birth in self._parked if not birth.failed]
        for birth in self._parked:
            if birth not in kept:
                birth.cancel()
        more = [self._asked() for _ in range(count - len(kept))]
        self._parked = kept + [birth for birth in more if birth is not None]

    def overdue(self, patience: float) -> None:
        """Somebody has given up waiting for a birth after ``patience`` seconds."""
        self._say(f"the warm parent did not answer within {patience:g} s: workers start in fresh interpreters")

    def reap_orphans(self, known: Iterable[int]) -> None:
        """Reap what workers have left to us; ``known`` are children that others wait for, as are all of our session."""
        ours, session = {*known, *self._before, *self._kin, self.pid or 0}, os.getsid(0)
        for pid in _children():
            if pid not in ours and _is_zombie_of_another_session(pid, session):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _asked(self) -> Birth | None:
        if self._parent is None or not self._fit:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._parent.control, [b"birth"], [theirs.fileno()], socket.MSG_DONTWAIT)
            except OSError:  # it has died, which `heard` will see, or has too much to do
                ours.close()
                return None
        return Birth(ours, self._kin, self.poisoned)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = self._settings
        program = [sys.executable, "-u", _PROGRAM, str(theirs.fileno()), ",".join(settings.preload), *settings.words]
        deaf = shell_prefix(("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"))
        with theirs:
            try:
                process = subprocess.Popen(
                    [*deaf, *program],
                    env=settings.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # SLURM waits for whoever holds a task's output open
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(), *settings.keep_fds),
                )
            except OSError as error:
                ours.close()
                self._loaded()
                self._say(f"the warm parent cannot be started: {error}; workers start in fresh interpreters")
                return
        self._parent = _Parent(process, ours)
        self._guard.spare(process.pid)

    def _died(self) -> None:
        pid = self.pid
        self._end()
        if not self._fit:
            return
        if self._lives:
            self._lives -= 1
            self._say(f"the warm parent, process {pid}, died; another one takes its place")
            self._start()
        else:
            self._say(f"the warm parent died {_LIVES + 1} times: workers start in fresh interpreters from now on")

    def _end(self) -> None:
        if self._parent is None:
            return
        parent, self._parent = self._parent, None
        self._guard.spare(0)
        parent.control.close()
        parent.process.kill()  # it may be in the middle of an import
        self._kin.add(parent.process.pid)
        reaper = threading.Thread(target=self._reap, args=(parent.process,), name="reaper of warm parent", daemon=True)
        reaper.start()
        reaper.join(_END_PATIENCE)

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._kin.discard(process.pid)

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._report(what)


def _last_word(control: socket.socket) -> str:
    try:
        return control.recv(4096, socket.MSG_DONTWAIT).decode()
    except ConnectionResetError:  # it has ended with requests unread, which is told before what it said
        return control.recv(4096, socket.MSG_DONTWAIT).decode()


def _set_subreaper(on: bool) -> bool:
    """Let orphans among our descendants become our children, or init's again; whether it was so before."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(_SUBREAPER_GET, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(_SUBREAPER_SET, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    return bool(before.value)


def _children() -> list[int]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    return found


def _is_zombie_of_another_session(pid: int, session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[3]) != session
