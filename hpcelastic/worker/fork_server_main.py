"""The fork server: a process that has imported the modules that workers need, and forks the workers.

``python -u fork_server_main.py FD LEARN MODULE,MODULE... SCRIPT [ARG...]``, or ``-m MODULE`` for a script. It runs as a
script itself, so that a worker contains no module of this package that it does not import. FD is a SOCK_SEQPACKET
socket to the agent. The fork server ends when the agent closes it. It sends ``ready`` there once, or ``unusable
REASON`` if no fork of it can be trusted. Each message that it receives is a spawn request. It carries one descriptor,
the connection of the new worker: a stream socket on which the spawned process writes its pid and reads its command. The
command is one line of JSON, sent together with the descriptors of its standard output and error and of other files that
it inherits. No code of the user runs before the command arrives. If the connection ends instead, the request is
cancelled.

If LEARN is 1, the fork server learns what the workers import. Some seconds after a worker has started, it forks a
replacement for itself, which repeats the imports (see `learned_imports`). If no fork of the replacement can be trusted,
the replacement ends, and the fork server tries again without the package that was the reason. Otherwise the replacement
sends ``replacement PID`` to the agent. The agent answers ``retire``, a message without a descriptor. The fork server
then ends, and the replacement serves the requests that follow.

A spawned process is forked twice, so that it becomes a child of the agent, which reaps it. Then it takes the state of a
fresh interpreter before the first line of the script. Only the last lines of this file stay on its call stack.
"""

import builtins
import contextlib
import faulthandler
import gc
import importlib
import importlib.machinery
import importlib.util
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

_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""SLURM sends these signals to every process of a task. Only the agent handles them."""

_DEVICE_PREFIXES = ("/dev/nvidia", "/dev/kfd")
_MAX_FDS = 64


# The state of a fresh interpreter


def import_path_start(arguments: list[str]) -> list[str]:
    """Return the first entries of ``sys.path`` in an interpreter that is started with ``arguments``."""
    if getattr(sys.flags, "safe_path", False):
        return []
    return [os.getcwd() if arguments[0] == "-m" else os.path.dirname(os.path.realpath(arguments[0]))]


def set_command_line(arguments: list[str]) -> None:
    """Set ``sys`` and ``__main__`` as in an interpreter that is started with ``arguments``; see `import_path_start`."""
    sys.orig_argv[:] = [sys.orig_argv[0], "-u", *arguments]
    sys.argv[:] = ["-m", *arguments[2:]] if arguments[0] == "-m" else arguments
    main = types.ModuleType("__main__")
    names: dict[str, Any] = {"__builtins__": builtins, "__loader__": importlib.machinery.BuiltinImporter}
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    if arguments[0] != "-m":
        path = os.path.join(os.getcwd(), arguments[0])
        names |= {"__file__": path, "__loader__": importlib.machinery.SourceFileLoader("__main__", path)}
        if sys.version_info < (3, 15):
            names["__cached__"] = None
    vars(main).update(names)
    sys.modules["__main__"] = main


def set_process_title(arguments: list[str]) -> None:
    """Make ``ps`` show ``arguments`` by overwriting the memory that holds this process's command line."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])  # proc(5): arg_start
    line = b"".join(os.fsencode(argument) + b"\0" for argument in (sys.orig_argv[0], "-u", *arguments))
    if begin and len(line) <= end - begin:
        with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(line.ljust(end - begin, b"\0"))


def reason_not_to_fork() -> str | None:
    """Return the reason why no fork of this process can be trusted; None if there is none."""
    threads = len(sys._current_frames()) - 1
    if threads:
        return f"an imported module has started {threads} thread{'s' if threads > 1 else ''}"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(_DEVICE_PREFIXES):
                return f"an imported module has opened {path}"
    return _device_in_use()


def _device_in_use() -> str | None:
    for name in ("cuda", "xpu", "mtia", "hpu"):
        device = sys.modules.get(f"torch.{name}")
        for function in ("is_initialized", "_is_in_bad_fork"):  # the second becomes true only in a fork
            if getattr(device, function, bool)():
                return f"an imported module has used torch.{name}"
    return None


# Spawning a worker


def _fork() -> int:
    with warnings.catch_warnings():
        # About threads, such as those of OpenBLAS, which supports forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _fork_child_of_agent(connection: socket.socket, other_end: socket.socket | None = None) -> bool:
    """Fork; return True in the new process, once it is the agent's child. It ends if ``connection`` ends before.

    ``other_end`` is the other end of the connection, if this process has it. The new process closes it.
    """
    agent = os.getppid()
    if _fork():
        return False
    with contextlib.suppress(OSError):
        if _fork():
            os._exit(0)
        if other_end is not None:
            other_end.close()
        os.setsid()
        while os.getppid() != agent:
            if _is_cancelled(connection):
                os._exit(1)
            time.sleep(0.0005)  # until the intermediate process has ended
        return True
    os._exit(1)


def _fork_worker(control: socket.socket, connection: socket.socket, learner: Any) -> bool:
    """Fork; return True in the spawned process once it has written its pid."""
    if not _fork_child_of_agent(connection):
        return False
    with contextlib.suppress(OSError):
        control.close()
        if learner is not None:
            learner.close()
        reason = _device_in_use()
        connection.sendall(f"unusable {reason}\n".encode() if reason else f"{os.getpid()}\n".encode())
        return True
    os._exit(1)


def _is_cancelled(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _receive_spawn_command(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for the command and return it with its descriptors."""
    data, fds = b"", []
    while not data.endswith(b"\n"):
        chunk, received, _, _ = socket.recv_fds(connection, 2**16, _MAX_FDS)
        if not chunk:
            os._exit(1)
        data += chunk
        fds += received
    connection.close()
    return json.loads(data), fds


def _environment(initial: dict[str, str], requested: dict[str, str]) -> dict[str, str]:
    """Return the requested environment with the changes that the interpreter and the imports made to ``initial``."""
    current = dict(os.environ)
    changed = {name for name in initial.keys() | current.keys() if initial.get(name) != current.get(name)}
    changed = {name for name in changed if requested.get(name) == initial.get(name)}
    unchanged = {name: value for name, value in requested.items() if name not in changed}
    return unchanged | {name: current[name] for name in changed if name in current}


def _become_worker(
    command: dict[str, Any], fds: list[int], initial: dict[str, str], path: list[str], output: list[bytes], learner: Any
) -> list[str]:
    """Take the state of a fresh interpreter, except for the imported modules; return its arguments."""
    stdout, stderr, *others = fds
    for number, (fd, text) in enumerate(zip((stdout, stderr), output, strict=True), 1):
        os.dup2(fd, number)
        os.close(fd)
        if text:
            os.write(number, text)
    environ = _environment(initial, command["environ"])
    os.environ.clear()
    os.environ.update(environ)
    arguments = [*command["arguments"], *map(str, others)]
    if arguments != sys.orig_argv[2:] or import_path_start(arguments) != path:  # a link may lead elsewhere
        for entry in filter(sys.path.__contains__, path):
            sys.path.remove(entry)
        sys.path[:0] = import_path_start(arguments)
        set_command_line(arguments)
    if learner is not None and environ.get("HPCELASTIC_LOCAL_RANK") == "0":
        learner.record_imports()
    set_process_title(arguments)
    _register_stacks(environ.get("HPCELASTIC_STACKS", ""))
    _reseed()
    importlib.invalidate_caches()
    for signum in (*_IGNORED_SIGNALS, signal.SIGCHLD):
        default = signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, signal.SIG_IGN if signum.name in command["ignored"] else default)
    return arguments


def _register_stacks(variable: str) -> None:
    """Write the stack of the main thread to memory of the agent at a signal; see `hpcelastic.ipc.stack_memory`."""
    signum, _, path = variable.partition(":")
    if path:
        with contextlib.suppress(OSError):  # the agent has ended
            faulthandler.register(int(signum), os.open(path, os.O_WRONLY | os.O_APPEND), all_threads=False)


def _reseed() -> None:
    """Seed from the system's entropy, like a fresh interpreter. Python's ``random`` does so itself at a fork."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


# The fork server


def _load(names: list[str]) -> str | None:
    """Import the modules; return the reason why no fork can be trusted, None if there is none."""
    gc.disable()
    for name in filter(None, names):
        try:
            importlib.import_module(name)
        except BaseException as error:
            message = str(error).partition("\n")[0][:500]
            return f"import {name}: {type(error).__name__}: {message}"
    gc.freeze()  # so that no collection copies shared pages; a collection before it would take a sixth of the time
    gc.enable()
    return reason_not_to_fork()


def _capture_output(load: Callable[[], str | None]) -> tuple[str | None, list[bytes]]:
    """Return the result of ``load`` and its output on stdout and stderr, which each worker writes again as its own."""
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    for number, fd in enumerate(files, 1):
        os.dup2(fd, number)
    result = load()
    output = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in files]
    for fd in files:
        os.close(fd)
    return result, output


def await_spawn_request() -> list[str]:
    """Run the fork server; return in each spawned worker, with the arguments of its command line."""
    for signum in _IGNORED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    learner = _load_file("learned_imports").ImportLearner(_fork_child_of_agent) if sys.argv[2] == "1" else None
    collective_watch = _load_file("collective_watch")
    names, arguments, initial = sys.argv[3].split(","), sys.argv[4:], _initial_environment()
    path = import_path_start(arguments)
    sys.path[: len(path)] = path  # it began with our own directory
    set_command_line(arguments)
    reason, output = _capture_output(lambda: _load(names))
    control.send(f"unusable {reason}".encode() if reason else b"ready")
    if reason:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the intermediate processes
    while True:
        if learner is not None and not learner.learn_until_readable(control):
            output = [before + after for before, after in zip(output, _take_over(learner, control), strict=True)]
            continue
        connection = _receive_request(control)
        if connection is None:
            if learner is not None and learner.has_replacement:
                os._exit(0)
            continue
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are delivered later
        if not _is_cancelled(connection) and _fork_worker(control, connection, learner):
            arguments = _become_worker(*_receive_spawn_command(connection), initial, path, output, learner)
            collective_watch.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return arguments
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        connection.close()
        if learner is not None:
            learner.worker_spawned()


def _take_over(learner: Any, control: socket.socket) -> list[bytes]:
    """Become the fork server in a replacement: repeat the imports, and wait for the end of the old server.

    Return the output of the imports.
    """
    gc.disable()
    package, output = _capture_output(lambda: learner.repeat_imports(reason_not_to_fork))
    gc.freeze()
    gc.enable()
    try:
        if package:
            learner.report_unsafe(package)
            os._exit(0)
        control.send(f"replacement {os.getpid()}".encode())
        learner.await_end_of_old_server()
    except OSError:  # the agent has ended
        os._exit(1)
    return output


def _initial_environment() -> dict[str, str]:
    """Return the environment with which this process was started."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs}


def _receive_request(control: socket.socket) -> socket.socket | None:
    """Return the connection of the next worker to spawn; None if this process shall retire. Exit if the agent ends."""
    data, fds, _, _ = socket.recv_fds(control, 16, _MAX_FDS)
    if not data:
        os._exit(0)
    return socket.socket(fileno=fds[0]) if fds else None


def _load_file(name: str) -> Any:
    """Return a module of this directory, which no worker can find in ``sys.modules``."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_hpcelastic_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Running the script


def load_script(script: str) -> types.CodeType:
    """Return the code of a script; exit like an interpreter if it can't be read."""
    path = os.path.join(os.getcwd(), script)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    return compile(source, path, "exec", dont_inherit=True)


def end_with_traceback(error: BaseException) -> NoReturn:
    """Handle an uncaught exception like an interpreter, and exit; source: PyErr_PrintEx of CPython."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    error = error.with_traceback(traceback)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, traceback)
    except SystemExit:
        raise
    except BaseException as another:
        print("Error in sys.excepthook:", file=sys.stderr)
        tb = another.__traceback__.tb_next if another.__traceback__ else None
        sys.__excepthook__(type(another), another.with_traceback(tb), tb)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, traceback)
    if type(error) is KeyboardInterrupt:
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt  # the interpreter then kills itself by SIGINT
    sys.exit(1)


if __name__ == "__main__":
    _self = sys.modules["__main__"]  # keeps the module alive after its replacement
    _arguments = await_spawn_request()
    _uncaught: list[BaseException] = []
    try:
        if _arguments[0] == "-m":
            runpy._run_module_as_main(_arguments[1])  # type: ignore[attr-defined]  # the interpreter itself calls it
        else:
            exec(load_script(_arguments[0]), vars(sys.modules["__main__"]))
    except SystemExit:
        raise
    except BaseException as _error:
        _uncaught.append(_error)
    if _uncaught:
        end_with_traceback(_uncaught.pop())
