"""The warm parent: a process that has imported what the workers need, and is forked into each of them.

``python -u warm.py FD MODULE,MODULE... SCRIPT [ARG...]``, or ``-m MODULE`` for a script; run as a script itself, so
that a worker has nothing of this package that it does not import. FD is a SOCK_SEQPACKET socket to the agent, whose end
ends the parent. It says ``ready`` there once, or ``poisoned REASON`` if no fork of it is to be trusted. Each message
that it receives carries one descriptor, the line of a worker to be born: a stream socket on which the newborn writes
its pid and reads its order, one line of JSON that comes with its standard output and error and what else it is to hold.
No code of the user's runs before the order; an end of the line instead means that nobody wants the worker any more.

A newborn is forked twice, so that it becomes a child of the agent, which reaps it. Then it turns into what a fresh
interpreter is before the first line of the script. The last lines of this file are all that is left below it.
"""

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""SLURM signals every process of a task; the agent decides."""

_DEVICES = ("/dev/nvidia", "/dev/kfd")
_MAX_FDS = 64


# What it looks like from inside


def head(words: list[str]) -> list[str]:
    """What ``sys.path`` begins with in an interpreter that is started with ``words``."""
    if getattr(sys.flags, "safe_path", False):
        return []
    return [os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))]


def pose(words: list[str]) -> None:
    """Let ``sys`` and ``__main__`` be as in an interpreter that was started with ``words``; see `head` too."""
    sys.orig_argv[:] = [sys.orig_argv[0], "-u", *words]
    sys.argv[:] = ["-m", *words[2:]] if words[0] == "-m" else words
    main = types.ModuleType("__main__")
    names: dict[str, Any] = {"__builtins__": builtins, "__loader__": importlib.machinery.BuiltinImporter}
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    if words[0] != "-m":
        path = os.path.join(os.getcwd(), words[0])
        names |= {"__file__": path, "__loader__": importlib.machinery.SourceFileLoader("__main__", path)}
        if sys.version_info < (3, 15):
            names["__cached__"] = None
    vars(main).update(names)
    sys.modules["__main__"] = main


def show(words: list[str]) -> None:
    """Let ``ps`` show ``words``: our memory that holds the command line is written over."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])  # proc(5): arg_start
    line = b"".join(os.fsencode(word) + b"\0" for word in (sys.orig_argv[0], "-u", *words))
    if begin and len(line) <= end - begin:
        with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(line.ljust(end - begin, b"\0"))


def unfit() -> str | None:
    """Why no fork of this process is to be trusted; None if there is no reason."""
    threads = len(sys._current_frames()) - 1
    if threads:
        return f"what was imported has started {threads} thread{'s' if threads > 1 else ''}"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(_DEVICES):
                return f"what was imported has opened {path}"
    return _used_device()


def _used_device() -> str | None:
    for name in ("cuda", "xpu", "mtia", "hpu"):
        device = sys.modules.get(f"torch.{name}")
        for sign in ("is_initialized", "_is_in_bad_fork"):  # the second turns true in a fork only
            if getattr(device, sign, bool)():
                return f"what was imported has used torch.{name}"
    return None


# Birth


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, such as OpenBLAS's, which is ready for it
        return os.fork()


def _born(control: socket.socket, line: socket.socket) -> bool:
    """Fork; returns True in the newborn, once it is the agent's child and has said so."""
    agent = os.getppid()
    if _fork():
        return False
    with contextlib.suppress(OSError):
        if _fork():
            os._exit(0)
        control.close()
        os.setsid()
        while os.getppid() != agent:
            if _unwanted(line):
                os._exit(1)
            time.sleep(0.0005)  # the process between us has taken its last step
        reason = _used_device()
        line.sendall(f"poisoned {reason}\n".encode() if reason else f"{os.getpid()}\n".encode())
        return True
    os._exit(1)


def _unwanted(line: socket.socket) -> bool:
    poll = select.poll()
    poll.register(line, select.POLLRDHUP)
    return bool(poll.poll(0))


def _order(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The order, once it comes, and the descriptors that come with it."""
    data, fds = b"", []
    while not data.endswith(b"\n"):
        more, received, _, _ = socket.recv_fds(line, 2**16, _MAX_FDS)
        if not more:
            os._exit(1)
        data += more
        fds += received
    line.close()
    return json.loads(data), fds


def _environment(given: dict[str, str], ordered: dict[str, str]) -> dict[str, str]:
    """What is ordered, with what the interpreter's start and the imports have changed since it was ``given``."""
    ours = dict(os.environ)
    changed = {name for name in given.keys() | ours.keys() if given.get(name) != ours.get(name)}
    changed = {name for name in changed if ordered.get(name) == given.get(name)}
    kept = {name: value for name, value in ordered.items() if name not in changed}
    return kept | {name: ours[name] for name in changed if name in ours}


def _become(order: dict[str, Any], fds: list[int], given: dict[str, str], said: list[bytes]) -> list[str]:
    """Be in every respect, but for the modules that are imported, what a fresh interpreter is; returns its words."""
    stdout, stderr, *others = fds
    for number, (fd, text) in enumerate(zip((stdout, stderr), said, strict=True), 1):
        os.dup2(fd, number)
        os.close(fd)
        if text:
            os.write(number, text)
    environ = _environment(given, order["environ"])
    os.environ.clear()
    os.environ.update(environ)
    words = [*order["words"], *map(str, others)]
    if words != sys.orig_argv[2:]:
        for entry in head(sys.orig_argv[2:]):
            sys.path.remove(entry)
        sys.path[:0] = head(words)
        pose(words)
    show(words)
    _reseed()
    importlib.invalidate_caches()
    for signum in (*_DEAF, signal.SIGCHLD):
        fresh = signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, signal.SIG_IGN if signum.name in order["ignored"] else fresh)
    return words


def _reseed() -> None:
    """Take from the system's entropy what a fresh interpreter does; Python's ``random`` has done so at the fork."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


# The parent


def _load(names: list[str]) -> str | None:
    """Import the modules; the reason why nothing can be forked from us, None if there is none."""
    gc.disable()
    for name in filter(None, names):
        try:
            importlib.import_module(name)
        except BaseException as error:
            told = str(error).partition("\n")[0][:500]
            return f"import {name}: {type(error).__name__}: {told}"
    gc.freeze()  # no collection copies the pages that the workers share; to collect first would take a sixth of it all
    gc.enable()
    return unfit()


def _captured(load: Callable[[], str | None]) -> tuple[str | None, list[bytes]]:
    """What ``load`` returns, and what it wrote to standard output and error: each worker says it again as its own."""
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    for number, fd in enumerate(files, 1):
        os.dup2(fd, number)
    result = load()
    said = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in files]
    for fd in files:
        os.close(fd)
    return result, said


def await_birth() -> list[str]:
    """Live as the parent; returns in each worker, with the words of its command line."""
    for signum in _DEAF:
        signal.signal(signum, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    names, words, given = sys.argv[2].split(","), sys.argv[3:], _given_environment()
    sys.path[: len(head(words))] = head(words)  # our own directory was there
    pose(words)
    reason, said = _captured(lambda: _load(names))
    control.send(f"poisoned {reason}".encode() if reason else b"ready")
    if reason:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the process between us and a newborn
    while True:
        line = _asked(control)
        if line is None:
            os._exit(0)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # what comes meanwhile, comes later
        if not _unwanted(line) and _born(control, line):
            words = _become(*_order(line), given, said)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return words
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        line.close()


def _given_environment() -> dict[str, str]:
    """The environment that we were started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs}


def _asked(control: socket.socket) -> socket.socket | None:
    """The line of the next worker to be born; None if the agent has gone."""
    data, fds, _, _ = socket.recv_fds(control, 16, _MAX_FDS)
    return socket.socket(fileno=fds[0]) if data else None


# The end of a worker


def code_of(script: str) -> types.CodeType:
    """The code of a script; ends as an interpreter does that can't read it."""
    path = os.path.join(os.getcwd(), script)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    return compile(source, path, "exec", dont_inherit=True)


def end_by(error: BaseException) -> NoReturn:
    """Do what an interpreter does about an exception that nobody has caught; source: PyErr_PrintEx of CPython."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as another:
        print("Error in sys.excepthook:", file=sys.stderr)
        rest = another.__traceback__.tb_next if another.__traceback__ else None
        sys.__excepthook__(type(another), another.with_traceback(rest), rest)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    if type(error) is KeyboardInterrupt:
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt  # the interpreter ends itself by SIGINT
    sys.exit(1)


if __name__ == "__main__":
    _self = sys.modules["__main__"]  # outlives its place there
    _words = await_birth()
    _uncaught: list[BaseException] = []
    try:
        if _words[0] == "-m":
            runpy._run_module_as_main(_words[1])  # type: ignore[attr-defined]  # what the interpreter itself calls
        else:
            exec(code_of(_words[0]), vars(sys.modules["__main__"]))
    except SystemExit:
        raise
    except BaseException as _error:
        _uncaught.append(_error)
    if _uncaught:
        end_by(_uncaught.pop())
