"""The agent's side of its fork server; see `hpcelastic.worker.fork_server_main`.

`ForkServer.request_spawn` requests a process and returns at once; see `hpcelastic.agent.spawn_request`. After a failure
the caller starts the worker in a fresh interpreter.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import hpcelastic.worker
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import MARKER, kill_marked_processes
from hpcelastic.agent.spawn_request import UNUSABLE, SpawnedProcess, SpawnRequest
from hpcelastic.ipc.descriptors import send_fds

PROGRAM = str(Path(hpcelastic.worker.__file__).with_name("fork_server_main.py"))

_MAX_RESTARTS = 3
"""How often a fork server that died is replaced."""

_PRELOAD_TIMEOUT = 60.0
"""Seconds for which a new node waits for the imports before it joins a running round."""

_END_TIMEOUT = 1.0
"""Seconds to wait for the end of a killed fork server. A filesystem that hangs may delay it."""

_REPLACEMENT = "replacement "
"""Begins the message of a process that is to replace the fork server, followed by its process id."""

_SUBREAPER_SET, _SUBREAPER_GET = 36, 37  # prctl(2), <linux/prctl.h>


def shell_prefix(ignored: Iterable[str]) -> list[str]:
    """Return the start of a command line whose process ignores the given signals until it installs a handler.

    A shell ignores them and then calls exec. Python could do so only before a fork, which would change the agent as
    well. Popen also waits until the child has called exec: this takes no time for a shell on a local disk, but a Python
    on a shared filesystem may hang.
    """
    names = " ".join(name.removeprefix("SIG") for name in ignored)
    trap = f"trap '' {names}; " if names else ""
    return ["/bin/sh", "-c", f'{trap}exec "$@"', "sh"]


@dataclass(frozen=True)
class ForkServerSettings:
    """Settings of a fork server. They do not change while the agent runs."""

    preload: Sequence[str]
    args: Sequence[str]
    """The command line of the workers, after ``python -u``."""

    environ: Mapping[str, str]
    """The part of the environment that all workers share, including the agent's marker."""

    keep_fds: Sequence[int] = ()
    """Descriptors that every process inherits."""

    learn_imports: bool = True
    """Whether the server imports also what the workers import, as far as this is safe."""


@dataclass(frozen=True)
class _Server:
    """A running fork server process and the socket to it."""

    process: "subprocess.Popen[bytes] | SpawnedProcess"
    control: socket.socket


class ForkServer:
    """The fork server of this node, which is replaced when it dies. ``report`` receives each line for the user once.

    While it exists, orphans become children of this process: see PR_SET_CHILD_SUBREAPER in prctl(2).
    """

    def __init__(self, settings: ForkServerSettings, guard: Guard, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._guard = guard
        self._report = report
        self._restarts_left = _MAX_RESTARTS
        self._usable = True
        self.loading = True
        """True while the first server imports the workers' modules, for a minute at most."""

        self.times_learned = 0
        """How often a replacement has taken over, which has imported more of the workers' modules."""

        self._loading_timer = threading.Timer(_PRELOAD_TIMEOUT, self._end_loading)
        self._loading_timer.daemon = True
        self._loading_timer.start()
        self._reported: set[str] = set()
        self._preforked: list[SpawnRequest] = []
        self._awaited_pids: set[int] = set()
        """Children of this process that other code waits for."""

        self._server: _Server | None = None
        self._initial_children = _children()
        """Children that do not belong to the agent, if the agent runs inside another program."""

        self._was_subreaper = True
        """Whether orphans became children of this process before the fork server was started."""

        try:
            self._was_subreaper = _set_subreaper(True)
        except OSError as error:
            self._end_loading()
            self._report_once(f"this process cannot adopt forked workers: {error}; workers start in fresh interpreters")
        else:
            self._start()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loading_timer.cancel()
        for request in self._preforked:
            request.cancel()
        self._stop()
        if MARKER in self._settings.environ:
            kill_marked_processes(self._settings.environ[MARKER])  # a replacement that is importing
        if not self._was_subreaper:
            _set_subreaper(False)

    @property
    def pid(self) -> int | None:
        """The id of the server process; None if no server runs."""
        return self._server.process.pid if self._server is not None else None

    def fileno(self) -> int:
        """Readable when `handle_message` has something to read. Call it only while a server runs: see `pid`."""
        assert self._server is not None
        return self._server.control.fileno()

    def handle_message(self) -> None:
        """Read the server's message, or notice its end. Afterwards another server, or none, may run."""
        assert self._server is not None
        try:
            message = _last_message(self._server.control)
        except BlockingIOError:
            return
        self._end_loading()
        if message.startswith(_REPLACEMENT):
            self._replace_server(int(message.removeprefix(_REPLACEMENT)))
        elif message.startswith(UNUSABLE):
            self.mark_unusable(message.removeprefix(UNUSABLE))
        elif not message:
            self._handle_death()

    def _end_loading(self) -> None:
        self.loading = False
        self._loading_timer.cancel()

    def mark_unusable(self, reason: str) -> None:
        """Stop the fork server for good, because none of its forks can be trusted."""
        if self._usable:
            self._report_once(f"{reason}: workers start in fresh interpreters, which takes longer (workers.preload)")
        self._usable = False
        if self._server is not None:
            self._server.control.shutdown(socket.SHUT_RDWR)  # `handle_message` notices the end

    def request_spawn(self) -> SpawnRequest | None:
        """Request a process. Return None if no server runs. See `SpawnRequest`."""
        while self._preforked:
            request = self._preforked.pop()
            if not request.failed:
                return request
            request.cancel()
        return self._send_request()

    def prefork(self, count: int) -> None:
        """Spawn ``count`` processes in advance, because the fork of a large process takes time.

        `request_spawn` returns these first.
        """
        kept = [request for request in self._preforked if not request.failed]
        for request in self._preforked:
            if request not in kept:
                request.cancel()
        more = [self._send_request() for _ in range(count - len(kept))]
        self._preforked = kept + [request for request in more if request is not None]

    def idle_pids(self) -> list[int]:
        """Return the ids of the processes that run no user code: the server and those that were spawned in advance.

        Requests for processes in advance that are not spawned yet are cancelled, because their ids are not known.
        """
        pids = {request: request.pid for request in self._preforked}
        for request, pid in pids.items():
            if pid is None:
                request.cancel()
        self._preforked = [request for request, pid in pids.items() if pid is not None]
        return [pid for pid in (*pids.values(), self.pid) if pid is not None]

    def report_timeout(self, timeout: float) -> None:
        """Report that a spawn request has not been answered within ``timeout`` seconds."""
        self._report_once(f"the fork server did not answer within {timeout:g} s: workers start in fresh interpreters")

    def reap_orphans(self, known: Iterable[int]) -> None:
        """Reap orphans that workers have left behind.

        Not reaped are ``known``, for which the caller waits, and all children in the agent's own session.
        """
        excluded = {*known, *self._initial_children, *self._awaited_pids, self.pid or 0}
        session = os.getsid(0)
        for pid in _children():
            if pid not in excluded and _is_zombie_of_another_session(pid, session):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _send_request(self) -> SpawnRequest | None:
        if self._server is None or not self._usable:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                send_fds(self._server.control, b"spawn", [theirs.fileno()], socket.MSG_DONTWAIT)
            except OSError:  # it has died, which `handle_message` will notice, or its queue is full
                ours.close()
                return None
        return SpawnRequest(ours, self._awaited_pids, self.mark_unusable)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = self._settings
        learn, preload = str(int(settings.learn_imports)), ",".join(settings.preload)
        program = [sys.executable, "-u", PROGRAM, str(theirs.fileno()), learn, preload, *settings.args]
        ignore_signals = shell_prefix(("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"))
        with theirs:
            try:
                process = subprocess.Popen(
                    [*ignore_signals, *program],
                    env=settings.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # SLURM waits for every process that holds a task's output open
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(), *settings.keep_fds),
                )
            except OSError as error:
                ours.close()
                self._end_loading()
                self._report_once(f"the fork server cannot be started: {error}; workers start in fresh interpreters")
                return
        self._server = _Server(process, ours)
        self._guard.spare(process.pid)

    def _replace_server(self, pid: int) -> None:
        """Let the server end. Its replacement ``pid``, which has imported more modules, serves from now on."""
        assert self._server is not None
        self.times_learned += 1
        control, old = self._server.control, self._server.process
        self._server = _Server(SpawnedProcess(pid, self._awaited_pids), control)
        self._guard.spare(pid)
        with contextlib.suppress(OSError):  # it has died, which `handle_message` will notice
            control.send(b"retire", socket.MSG_DONTWAIT)
        self._reap_in_background(old)
        count = len(self._preforked)
        for request in self._preforked:
            request.cancel()
        self._preforked = []
        self.prefork(count)

    def _handle_death(self) -> None:
        pid = self.pid
        self._stop()
        if not self._usable:
            return
        if self._restarts_left:
            self._restarts_left -= 1
            self._report_once(f"the fork server, process {pid}, died; a new one is started")
            self._start()
        else:
            self._report_once(
                f"the fork server died {_MAX_RESTARTS + 1} times: workers start in fresh interpreters from now on"
            )

    def _stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        self._guard.spare(0)
        server.control.close()
        server.process.kill()  # it may be in the middle of an import
        self._reap_in_background(server.process).join(_END_TIMEOUT)

    def _reap_in_background(self, process: "subprocess.Popen[bytes] | SpawnedProcess") -> threading.Thread:
        self._awaited_pids.add(process.pid)

        def reap() -> None:
            process.wait()
            self._awaited_pids.discard(process.pid)

        reaper = threading.Thread(target=reap, name="reaper of fork server", daemon=True)
        reaper.start()
        return reaper

    def _report_once(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            self._report(line)


def _last_message(control: socket.socket) -> str:
    try:
        return control.recv(4096, socket.MSG_DONTWAIT).decode()
    except ConnectionResetError:  # it has ended with unread requests; the kernel reports this before its last message
        return control.recv(4096, socket.MSG_DONTWAIT).decode()


def _set_subreaper(on: bool) -> bool:
    """Let orphaned descendants become children of this process, or of init again. Return the setting of before."""
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
