"""The fork server: spawn requests, and their results if a process dies or hangs meanwhile."""

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.agent import fork_server, workers
from hpcelastic.agent.guard_main import marked_processes
from hpcelastic.agent.settings import Entrypoint
from hpcelastic.agent.spawn_request import SpawnRequest, WorkerCommand
from tests.agent.processes import TIMEOUT, eventually, watched
from tests.agent.starting import Node, node

PRINT_NAME = (
    "import os\nprint(os.getpid(), os.getppid(), open('/proc/self/cmdline').read().count('fork_server_main.py'))"
)
WAIT = "import time\nprint('here')\ntime.sleep(1000)"

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Return a function that makes a node, which runs a script with modules to preload."""
    made = []

    def made_node(script: str, preload: tuple[str, ...] = ("json",), *, count: int = 1, **modules: str) -> Node:
        (tmp_path / "train.py").write_text(script)
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        context = node(tmp_path, Entrypoint(script=str(tmp_path / "train.py")), preload, workers=count)
        made.append(context)
        return context.__enter__()

    yield made_node
    for context in made:
        context.__exit__(None, None, None)


def is_fork_of(pid: int, parent: int) -> bool:
    """Return whether ``pid`` was forked from the fork server, whose memory has the same random addresses."""

    def memory(pid: int) -> str:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return next(line.split()[0] for line in lines if "[vdso]" in line)

    return memory(pid) == memory(parent)


def parent_of(made: Node) -> int:
    assert made.fork_server is not None and made.fork_server.pid is not None
    return made.fork_server.pid


def await_message(made: Node) -> None:
    """Wait for the server's message and handle it."""
    assert made.fork_server is not None
    assert select.select([made.fork_server], [], [], TIMEOUT)[0], "the server sends nothing"
    made.fork_server.handle_message()


def children() -> set[int]:
    return set(fork_server._children())


# Purpose


def test_restarts_are_forked_from_the_same_parent(make: Make) -> None:
    made = make(WAIT, count=2)
    parent, seen = parent_of(made), set()
    for _ in range(3):
        group = made.start(2)
        made.attend(group)
        assert {worker.local_rank for worker in group.running.values()} == {0, 1}
        assert all(is_fork_of(pid, parent) for pid in group.pids.values())
        seen |= set(group.pids.values())
        group.stop(grace=TIMEOUT)
    assert parent_of(made) == parent and len(seen) == 6 and made.reports == []


def test_workers_are_children_of_the_agent(make: Make) -> None:
    made = make(PRINT_NAME)
    group = made.start()
    assert made.finish(group) == [0]
    assert made.log("out").split() == [str(group.pids[0]), str(os.getpid()), "0"]


def test_earlier_children_are_not_reaped(make: Make) -> None:
    child = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    made = make("pass")
    assert made.run() == [0]
    assert child.wait() == 7


def test_exit_statuses_and_signals_of_workers_are_known(make: Make) -> None:
    made = make("import os, signal, sys\nif os.environ['RANK'] == '0': sys.exit(3)\nos.kill(os.getpid(), 9)", count=2)
    assert made.run(2) == [3, -signal.SIGKILL]


def test_preforked_processes_are_used_first(make: Make) -> None:
    made = make(PRINT_NAME, count=2)
    assert made.fork_server is not None
    made.fork_server.prefork(2)
    await_message(made)
    preforked = list(made.fork_server._preforked)
    assert all(select.select([request], [], [], TIMEOUT)[0] for request in preforked)
    made.fork_server.prefork(2)
    assert made.fork_server._preforked == preforked, "none is requested twice"
    pids = set(marked_processes(made.facts.node)) - {parent_of(made)}
    group = made.start(2)
    assert set(group.spawn_requests) == {request.fileno() for request in preforked}
    assert made.finish(group) == [0, 0] and set(group.pids.values()) == pids


def test_the_end_of_a_group_spares_preforked_processes(make: Make) -> None:
    """They run no user code. A process that is being killed looks alive until its memory is freed."""
    made = make(WAIT)
    group = made.start()
    made.attend(group)
    assert made.fork_server is not None
    made.fork_server.prefork(1)
    (request,) = made.fork_server._preforked
    assert select.select([request], [], [], TIMEOUT)[0]
    os.kill(parent_of(made), signal.SIGSTOP)
    made.fork_server.prefork(2)
    group.stop(grace=0.0)
    os.kill(parent_of(made), signal.SIGCONT)
    assert made.fork_server._preforked == [request], "the process that had no id yet is cancelled"
    pid = request.pid
    group = made.start()
    made.attend(group)
    assert group.pids == {0: pid}
    group.stop(grace=0.0)
    assert set(marked_processes(made.facts.node)) == {parent_of(made)}


def test_preforked_processes_that_were_killed_are_replaced(make: Make) -> None:
    made = make(PRINT_NAME)
    assert made.fork_server is not None
    made.fork_server.prefork(1)
    (request,) = made.fork_server._preforked
    assert select.select([request], [], [], TIMEOUT)[0]
    process = request.process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: request.failed)
    made.fork_server.prefork(1)
    assert made.fork_server._preforked != [request]
    group = made.start()
    assert made.finish(group) == [0] and group.pids[0] != process.pid
    assert made.reports == []


def test_a_command_is_never_sent_twice(make: Make) -> None:
    """A spawned process closes its connection and ends before the agent has finished sending."""
    made = make("import os; os.write(1, b'ran\\n'); os._exit(0)", count=2)
    for _ in range(10):
        assert made.run(2) == [0, 0]
        assert [made.log("out", rank) for rank in range(2)] == ["ran\n", "ran\n"]


def test_another_program_can_be_spawned(make: Make, tmp_path: Path) -> None:
    """The store server is such a program. Its last arguments are the numbers of its descriptors."""
    made = make(
        PRINT_NAME, other="import os, sys\nprint(sys.argv[1:2], sys.path[0])\nos.write(int(sys.argv[2]), b'hi')"
    )
    assert made.fork_server is not None
    request = made.fork_server.request_spawn()
    assert request is not None and select.select([request], [], [], TIMEOUT)[0]
    process = request.process()
    assert process is not None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other.py").rename(tmp_path / "elsewhere" / "other.py")
    read, write = os.pipe()
    with open(tmp_path / "out", "wb") as out:
        command = WorkerCommand(
            [str(tmp_path / "elsewhere" / "other.py"), "a"], {}, out.fileno(), out.fileno(), fds=[write]
        )
        assert request.send_command(command)
    os.close(write)
    assert process.wait() == 0
    assert (tmp_path / "out").read_text() == f"['a'] {tmp_path / 'elsewhere'}\n"
    assert os.read(read, 9) == b"hi" and os.read(read, 9) == b"", "no other process holds it"
    os.close(read)


def test_a_link_to_the_directory_of_the_script_may_lead_elsewhere_during_the_run(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "train.py").write_text("import sys, own\nprint(own.version, sys.path[0])")
        (tmp_path / version / "own.py").write_text(f"version = {version!r}")
    link = tmp_path / "current"
    link.symlink_to("v1")
    with node(tmp_path, Entrypoint(script=str(link / "train.py")), ("json",)) as made:
        assert made.run() == [0]
        link.unlink()
        link.symlink_to("v2")
        assert made.run() == [0]
        assert made.log("out") == f"v2 {tmp_path / 'v2'}\n"


# Interrupted spawn requests


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that lets the import of ``slow`` continue."""
    os.mkfifo(tmp_path / "gate")
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    fd = os.open(tmp_path / "gate", os.O_RDWR)
    yield lambda: os.write(fd, b"!" * 100) and None
    os.close(fd)


SLOW = "import os\nos.read(os.open(os.environ['GATE'], os.O_RDONLY), 1)"


def test_spawn_requests_wait_for_the_imports(make: Make, gate: Callable[[], None]) -> None:
    made = make(PRINT_NAME, ("slow",), slow=SLOW)
    group = made.start()
    made.turn(group, 0.1)
    assert len(group.spawn_requests) == 1 and not group.running and not group.ended
    gate()
    assert made.finish(group) == [0]
    assert made.log("out").endswith("0\n") and made.reports == []


def test_a_cancelled_start_leaves_no_process(make: Make, gate: Callable[[], None], tmp_path: Path) -> None:
    made = make(f"open({str(tmp_path / 'ran')!r}, 'w')", ("slow",), slow=SLOW)
    parent = parent_of(made)
    group = made.start()
    assert group.stop(grace=TIMEOUT) == [] and group.ended
    gate()
    await_message(made)  # it has reached the request
    (made.directory / "train.py").write_text(PRINT_NAME)
    assert made.run() == [0]
    assert set(marked_processes(made.facts.node)) == {parent}
    assert not (tmp_path / "ran").exists()


def test_a_cancelled_start_with_spawned_processes_leaves_no_process(make: Make, tmp_path: Path) -> None:
    made = make(f"open({str(tmp_path / 'ran')!r}, 'w')", count=2)
    group = made.start(2)
    first = next(iter(group.spawn_requests.values()))
    assert select.select([first], [], [], TIMEOUT)[0]
    group.stop(grace=TIMEOUT)
    assert eventually(lambda: set(marked_processes(made.facts.node)) == {parent_of(made)})
    assert not (tmp_path / "ran").exists()


def test_a_worker_may_fail_before_the_others_are_spawned(make: Make, gate: Callable[[], None]) -> None:
    made = make("import os, time\nif os.environ['RANK'] == '0': os._exit(3)\ntime.sleep(1000)", count=2)
    group = made.start(2)
    while not group.running:
        line = next(fd for fd, rank in group._requested_ranks.items() if rank == 0)
        if select.select([line], [], [], TIMEOUT)[0]:
            group.complete_spawn(line)
    (pidfd,) = group.running
    assert select.select([pidfd], [], [], TIMEOUT)[0]
    assert group.reap(pidfd)[1] == 3 and not group.ended, "one is missing"
    group.stop(grace=0)
    assert group.ended


@pytest.mark.parametrize("when", ["during the import", "during the request", "after the spawn", "after the start"])
def test_a_killed_fork_server(make: Make, gate: Callable[[], None], when: str) -> None:
    made = make(PRINT_NAME if when != "after the start" else WAIT, ("slow",), count=2, slow=SLOW)
    first = parent_of(made)
    with watched(first) as (parent,):
        if when == "during the import":
            os.kill(first, signal.SIGKILL)
            assert parent.ends()
            group = made.start(2)
            gate()
        else:
            gate()
            await_message(made)
            os.kill(first, signal.SIGSTOP if when == "during the request" else signal.SIGCONT)
            group = made.start(2)
            if when == "after the start":
                made.attend(group)
            for request in () if when == "during the request" else list(group.spawn_requests.values()):
                assert select.select([request], [], [], TIMEOUT)[0]
            os.kill(first, signal.SIGKILL)
            assert parent.ends()
        if when == "after the start":
            await_message(made)
            assert select.select(list(group.running), [], [], 0.1)[0] == [], "they stay alive"
            group.stop(grace=0)
        else:
            assert made.finish(group) == [0, 0]
    if made.fork_server is not None and made.fork_server.pid == first:
        await_message(made)
    second = parent_of(made)
    assert second != first
    assert made.reports == [f"the fork server, process {first}, died; a new one is started"]
    gate()
    (made.directory / "train.py").write_text(PRINT_NAME)
    group = made.start(2)
    made.attend(group)
    assert made.finish(group) == [0, 0]
    assert made.log("out").endswith(" 0\n") and parent_of(made) == second


def test_a_fork_server_that_dies_repeatedly_is_not_replaced(make: Make) -> None:
    made = make(PRINT_NAME)
    for deaths in range(4):
        os.kill(parent_of(made), signal.SIGKILL)
        while made.fork_server is not None and made.fork_server.pid is not None and len(made.reports) <= deaths:
            await_message(made)
    assert made.fork_server is not None and made.fork_server.pid is None
    assert len(made.reports) == 4 and "died 4 times" in made.reports[-1]
    assert made.run() == [0]


def test_the_wait_for_a_fork_server_without_an_answer_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SPAWN_TIMEOUT", 0.2)
    made = make(PRINT_NAME, count=2)
    await_message(made)
    os.kill(parent_of(made), signal.SIGSTOP)
    for _ in range(2):
        assert made.run(2) == [0, 0]
    assert made.reports == ["the fork server did not answer within 0.2 s: workers start in fresh interpreters"]
    os.kill(parent_of(made), signal.SIGCONT)
    monkeypatch.setattr(workers, "_SPAWN_TIMEOUT", 60.0)
    group = made.start(2)
    made.attend(group)
    assert made.finish(group) == [0, 0] and len(made.reports) == 1


@pytest.mark.parametrize("moment", ["before the agent reads it", "after the agent has read it"])
def test_a_spawned_process_that_dies_is_replaced_by_a_fresh_interpreter(make: Make, moment: str) -> None:
    made = make(PRINT_NAME)
    group = made.start()
    (request,) = group.spawn_requests.values()
    assert select.select([request], [], [], TIMEOUT)[0]
    if moment == "after the agent has read it":
        process = request.process()
        assert process is not None
        pid = process.pid
    else:
        (pid,) = set(marked_processes(made.facts.node)) - {parent_of(made)}
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: request.failed)
    assert made.finish(group) == [0]
    assert group.pids[0] != pid and pid not in children()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_to_the_whole_task_do_not_end_the_fork_server(make: Make, signum: signal.Signals) -> None:
    made = make(PRINT_NAME)
    await_message(made)
    os.kill(parent_of(made), signum)
    assert made.run() == [0] and made.reports == []


def test_a_signal_right_after_the_command_is_not_lost(make: Make) -> None:
    made = make(WAIT, count=2)
    for _ in range(5):
        group = made.start(2)
        made.attend(group)
        group.send(signal.SIGTERM)
        assert made.finish(group) == [-signal.SIGTERM, -signal.SIGTERM]


# Servers whose forks cannot be used

UNFIT = {
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "an imported module has started 1 thread: ",
    ),
    "a device": (
        "import os\nkeep = os.open(os.environ['DEVICE'], os.O_RDONLY)",
        "an imported module has opened ",
    ),
    "a missing module": ("import nothing_of_that_name", "import unfit: ModuleNotFoundError: No module named 'nothing"),
    "a failing module": ("raise ValueError('two\\nlines')", "import unfit: ValueError: two: "),
    "an exit": ("import sys; sys.exit('no')", "import unfit: SystemExit: no: "),
    "an initialised GPU": (
        "import sys, types\nsys.modules['torch.cuda'] = types.SimpleNamespace(is_initialized=lambda: True)",
        "an imported module has used torch.cuda: ",
    ),
    "a GPU that forks can't use": (
        "import os, sys, types\npid = os.getpid()\n"
        "sys.modules['torch.cuda'] = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid)",
        "an imported module has used torch.cuda: ",
    ),
}


@pytest.mark.parametrize(("module", "reason"), UNFIT.values(), ids=UNFIT)
def test_an_unusable_fork_server(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
) -> None:
    if "DEVICE" in module:
        monkeypatch.setattr(fork_server, "PROGRAM", str(tmp_path / "fork_server_main.py"))
        program = Path(workers.__file__).parents[1] / "worker" / "fork_server_main.py"
        for name in ("learned_imports.py", "collective_watch.py"):
            shutil.copy(program.with_name(name), tmp_path)
        text = program.read_text()
        (tmp_path / "fork_server_main.py").write_text(text.replace('"/dev/nvidia"', repr(str(tmp_path / "nvidia"))))
        (tmp_path / "nvidia0").touch()
        monkeypatch.setenv("DEVICE", str(tmp_path / "nvidia0"))
    made = make(PRINT_NAME, ("json", "unfit"), unfit=module, count=2)
    for _ in range(2):
        assert made.run(2) == [0, 0]
    while made.fork_server is not None and made.fork_server.pid is not None:
        await_message(made)
    (report,) = made.reports
    assert report.startswith(reason) and report.endswith("takes longer (workers.preload)")
    assert set(marked_processes(made.facts.node)) == set()


def test_fresh_interpreters_are_used_if_forked_workers_cannot_be_adopted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(on: bool) -> bool:
        raise PermissionError(errno.EPERM, "PR_SET_CHILD_SUBREAPER")

    monkeypatch.setattr(fork_server, "_set_subreaper", refuse)
    made = make(PRINT_NAME)
    assert made.fork_server is not None and made.fork_server.pid is None and not made.fork_server.loading
    assert made.run() == [0]
    assert made.reports == [
        "this process cannot adopt forked workers: [Errno 1] PR_SET_CHILD_SUBREAPER; "
        "workers start in fresh interpreters"
    ]


def test_the_report_names_a_missing_module(make: Make) -> None:
    made = make(PRINT_NAME, ("no_such_module",))
    assert made.run() == [0]
    while made.reports == []:
        await_message(made)
    assert made.reports[0].startswith("import no_such_module: ModuleNotFoundError: No module named 'no_such_module': ")


# Remaining processes


def test_orphans_are_reaped(make: Make) -> None:
    orphan = "import subprocess\nprint(subprocess.Popen(['sh', '-c', 'setsid sleep 0 & setsid sleep 1000 &']).wait())"
    made = make(orphan)
    before = children()
    with subprocess.Popen(["true"]) as ours:  # a zombie of another parent
        assert made.run() == [0]
        assert eventually(
            lambda: (made.fork_server is None or made.fork_server.reap_orphans([])) or children() - before == {ours.pid}
        )
        assert ours.wait() == 0


def test_no_process_is_left_at_the_end(tmp_path: Path) -> None:
    before, fds = children(), sorted(os.listdir("/proc/self/fd"))
    (tmp_path / "train.py").write_text(PRINT_NAME)
    with node(tmp_path, Entrypoint(script=str(tmp_path / "train.py")), ("json",), workers=2) as made:
        assert made.run(2) == [0, 0]
        assert made.fork_server is not None
        made.fork_server.prefork(2)
        assert all(select.select([request], [], [], TIMEOUT)[0] for request in made.fork_server._preforked)
        marker = made.facts.node
    assert list(marked_processes(marker)) == []
    assert children() == before
    assert sorted(os.listdir("/proc/self/fd")) == fds


def test_the_fork_server_ends_with_its_agent(tmp_path: Path) -> None:
    """This also holds without a guard."""
    (tmp_path / "agent.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "from hpcelastic.agent.fork_server import ForkServer, ForkServerSettings\n"
        "class NoGuard:\n    def spare(self, pid): pass\n"
        "parent = ForkServer(ForkServerSettings(['json'], ['train.py'], dict(os.environ)), NoGuard(), print)\n"
        "print(parent.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "agent.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as agent:
        assert agent.stdout is not None
        with watched(int(agent.stdout.readline())) as (parent,):
            assert parent.alive
            agent.kill()
            assert parent.ends()


def test_a_closed_connection_is_detected() -> None:
    ours, theirs = socket.socketpair()
    request = SpawnRequest(ours, set(), print)
    assert not request.failed
    theirs.close()
    assert request.failed and request.process() is None
    request.cancel()
