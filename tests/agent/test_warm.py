"""The warm parent: births, and what becomes of them when something dies or hangs in between."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.agent import warm, workers
from hpcelastic.agent.guard import marked
from hpcelastic.agent.settings import Entrypoint
from hpcelastic.agent.warm import Order
from tests.agent.processes import PATIENCE, eventually, watched
from tests.agent.starting import Node, node

SAY_WHO = "import os\nprint(os.getpid(), os.getppid(), open('/proc/self/cmdline').read().count('warm.py'))"
WAIT = "import time\nprint('here')\ntime.sleep(1000)"

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A node that runs a script, with modules to preload; each test makes one."""
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
    """Whether ``pid`` was forked from the warm parent, whose memory lies at the same random addresses."""

    def memory(pid: int) -> str:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return next(line.split()[0] for line in lines if "[vdso]" in line)

    return memory(pid) == memory(parent)


def parent_of(made: Node) -> int:
    assert made.warm is not None and made.warm.pid is not None
    return made.warm.pid


def heard(made: Node) -> None:
    """Wait for the parent's word, and take it in."""
    assert made.warm is not None
    assert select.select([made.warm], [], [], PATIENCE)[0], "the parent says nothing"
    made.warm.heard()


def children() -> set[int]:
    return set(warm._children())


# What it is for


def test_restarts_are_forked_from_the_same_parent(make: Make) -> None:
    made = make(WAIT, count=2)
    parent, seen = parent_of(made), set()
    for _ in range(3):
        group = made.start(2)
        made.attend(group)
        assert {worker.local_rank for worker in group.running.values()} == {0, 1}
        assert all(is_fork_of(pid, parent) for pid in group.pids.values())
        seen |= set(group.pids.values())
        group.stop(grace=PATIENCE)
    assert parent_of(made) == parent and len(seen) == 6 and made.reports == []


def test_workers_are_children_of_the_agent(make: Make) -> None:
    made = make(SAY_WHO)
    group = made.start()
    assert made.finish(group) == [0]
    assert made.log("out").split() == [str(group.pids[0]), str(os.getpid()), "0"]


def test_children_from_before_are_left_to_who_waits_for_them(make: Make) -> None:
    child = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    made = make("pass")
    assert made.run() == [0]
    assert child.wait() == 7


def test_exit_statuses_and_signals_of_workers_are_known(make: Make) -> None:
    made = make("import os, signal, sys\nif os.environ['RANK'] == '0': sys.exit(3)\nos.kill(os.getpid(), 9)", count=2)
    assert made.run(2) == [3, -signal.SIGKILL]


def test_parked_newborns_are_taken_first(make: Make) -> None:
    made = make(SAY_WHO, count=2)
    assert made.warm is not None
    made.warm.park(2)
    heard(made)
    parked = list(made.warm._parked)
    assert all(select.select([birth], [], [], PATIENCE)[0] for birth in parked)
    made.warm.park(2)
    assert made.warm._parked == parked, "none is asked for twice"
    pids = set(marked(made.facts.node)) - {parent_of(made)}
    group = made.start(2)
    assert set(group.births) == {birth.fileno() for birth in parked}
    assert made.finish(group) == [0, 0] and set(group.pids.values()) == pids


def test_parked_newborns_that_were_killed_are_replaced(make: Make) -> None:
    made = make(SAY_WHO)
    assert made.warm is not None
    made.warm.park(1)
    (birth,) = made.warm._parked
    assert select.select([birth], [], [], PATIENCE)[0]
    process = birth.process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: birth.failed)
    made.warm.park(1)
    assert made.warm._parked != [birth]
    group = made.start()
    assert made.finish(group) == [0] and group.pids[0] != process.pid
    assert made.reports == []


def test_an_order_that_was_taken_is_never_given_twice(make: Make) -> None:
    """A newborn that closes its line, and ends, before the agent is done with sending."""
    made = make("import os; os.write(1, b'ran\\n'); os._exit(0)", count=2)
    for _ in range(10):
        assert made.run(2) == [0, 0]
        assert [made.log("out", rank) for rank in range(2)] == ["ran\n", "ran\n"]


def test_another_program_can_be_born(make: Make, tmp_path: Path) -> None:
    """As the host of the workers' store is: with descriptors, whose numbers are its last arguments."""
    made = make(SAY_WHO, other="import os, sys\nprint(sys.argv[1:2], sys.path[0])\nos.write(int(sys.argv[2]), b'hi')")
    assert made.warm is not None
    birth = made.warm.birth()
    assert birth is not None and select.select([birth], [], [], PATIENCE)[0]
    process = birth.process()
    assert process is not None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other.py").rename(tmp_path / "elsewhere" / "other.py")
    read, write = os.pipe()
    with open(tmp_path / "out", "wb") as out:
        order = Order([str(tmp_path / "elsewhere" / "other.py"), "a"], {}, out.fileno(), out.fileno(), fds=[write])
        assert birth.order(order)
    os.close(write)
    assert process.wait() == 0
    assert (tmp_path / "out").read_text() == f"['a'] {tmp_path / 'elsewhere'}\n"
    assert os.read(read, 9) == b"hi" and os.read(read, 9) == b"", "nobody else holds it"
    os.close(read)


# Births that are interrupted


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Lets an import of ``slow`` go on, which waits for it."""
    os.mkfifo(tmp_path / "gate")
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    fd = os.open(tmp_path / "gate", os.O_RDWR)
    yield lambda: os.write(fd, b"!" * 100) and None
    os.close(fd)


SLOW = "import os\nos.read(os.open(os.environ['GATE'], os.O_RDONLY), 1)"


def test_births_wait_for_the_imports(make: Make, gate: Callable[[], None]) -> None:
    made = make(SAY_WHO, ("slow",), slow=SLOW)
    group = made.start()
    made.turn(group, 0.1)
    assert len(group.births) == 1 and not group.running and not group.over
    gate()
    assert made.finish(group) == [0]
    assert made.log("out").endswith("0\n") and made.reports == []


def test_a_start_that_is_cancelled_leaves_nothing(make: Make, gate: Callable[[], None], tmp_path: Path) -> None:
    made = make(f"open({str(tmp_path / 'ran')!r}, 'w')", ("slow",), slow=SLOW)
    parent = parent_of(made)
    group = made.start()
    assert group.stop(grace=PATIENCE) == [] and group.over
    gate()
    heard(made)  # it has come to what was asked
    (made.directory / "train.py").write_text(SAY_WHO)
    assert made.run() == [0]
    assert set(marked(made.facts.node)) == {parent}
    assert not (tmp_path / "ran").exists()


def test_a_start_that_is_cancelled_with_newborns_there_leaves_nothing(make: Make, tmp_path: Path) -> None:
    made = make(f"open({str(tmp_path / 'ran')!r}, 'w')", count=2)
    group = made.start(2)
    first = next(iter(group.births.values()))
    assert select.select([first], [], [], PATIENCE)[0]
    group.stop(grace=PATIENCE)
    assert eventually(lambda: set(marked(made.facts.node)) == {parent_of(made)})
    assert not (tmp_path / "ran").exists()


def test_a_worker_that_fails_before_the_others_are_born_is_one_of_a_group(make: Make, gate: Callable[[], None]) -> None:
    made = make("import os, time\nif os.environ['RANK'] == '0': os._exit(3)\ntime.sleep(1000)", count=2)
    group = made.start(2)
    while not group.running:
        line = next(fd for fd, rank in group._expected.items() if rank == 0)
        if select.select([line], [], [], PATIENCE)[0]:
            group.born(line)
    (pidfd,) = group.running
    assert select.select([pidfd], [], [], PATIENCE)[0]
    assert group.reap(pidfd)[1] == 3 and not group.over, "one is to come"
    group.stop(grace=0)
    assert group.over


@pytest.mark.parametrize("when", ["as it imports", "as it is asked", "once they are born", "once they run"])
def test_killed_parent(make: Make, gate: Callable[[], None], when: str) -> None:
    made = make(SAY_WHO if when != "once they run" else WAIT, ("slow",), count=2, slow=SLOW)
    first = parent_of(made)
    with watched(first) as (parent,):
        if when == "as it imports":
            os.kill(first, signal.SIGKILL)
            assert parent.ends()
            group = made.start(2)
            gate()
        else:
            gate()
            heard(made)
            os.kill(first, signal.SIGSTOP if when == "as it is asked" else signal.SIGCONT)
            group = made.start(2)
            if when == "once they run":
                made.attend(group)
            for birth in () if when == "as it is asked" else list(group.births.values()):
                assert select.select([birth], [], [], PATIENCE)[0]
            os.kill(first, signal.SIGKILL)
            assert parent.ends()
        if when == "once they run":
            heard(made)
            assert select.select(list(group.running), [], [], 0.1)[0] == [], "they live on"
            group.stop(grace=0)
        else:
            assert made.finish(group) == [0, 0]
    if made.warm is not None and made.warm.pid == first:
        heard(made)
    second = parent_of(made)
    assert second != first
    assert made.reports == [f"the warm parent, process {first}, died; another one takes its place"]
    gate()
    (made.directory / "train.py").write_text(SAY_WHO)
    group = made.start(2)
    made.attend(group)
    assert made.finish(group) == [0, 0]
    assert made.log("out").endswith(" 0\n") and parent_of(made) == second


def test_a_parent_that_dies_again_and_again_is_given_up(make: Make) -> None:
    made = make(SAY_WHO)
    for deaths in range(4):
        os.kill(parent_of(made), signal.SIGKILL)
        while made.warm is not None and made.warm.pid is not None and len(made.reports) <= deaths:
            heard(made)
    assert made.warm is not None and made.warm.pid is None
    assert len(made.reports) == 4 and "died 4 times" in made.reports[-1]
    assert made.run() == [0]


def test_a_parent_that_does_not_answer_is_not_waited_for_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_BIRTH_PATIENCE", 0.2)
    made = make(SAY_WHO, count=2)
    heard(made)
    os.kill(parent_of(made), signal.SIGSTOP)
    for _ in range(2):
        assert made.run(2) == [0, 0]
    assert made.reports == ["the warm parent did not answer within 0.2 s: workers start in fresh interpreters"]
    os.kill(parent_of(made), signal.SIGCONT)
    monkeypatch.setattr(workers, "_BIRTH_PATIENCE", 60.0)
    group = made.start(2)
    made.attend(group)
    assert made.finish(group) == [0, 0] and len(made.reports) == 1


@pytest.mark.parametrize("moment", ["before it is seen", "once it is seen"])
def test_a_newborn_that_dies_is_replaced_by_a_fresh_interpreter(make: Make, moment: str) -> None:
    made = make(SAY_WHO)
    group = made.start()
    (birth,) = group.births.values()
    assert select.select([birth], [], [], PATIENCE)[0]
    if moment == "once it is seen":
        process = birth.process()
        assert process is not None
        pid = process.pid
    else:
        (pid,) = set(marked(made.facts.node)) - {parent_of(made)}
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: birth.failed)
    assert made.finish(group) == [0]
    assert group.pids[0] != pid and pid not in children()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_to_the_whole_task_do_not_end_the_parent(make: Make, signum: signal.Signals) -> None:
    made = make(SAY_WHO)
    heard(made)
    os.kill(parent_of(made), signum)
    assert made.run() == [0] and made.reports == []


def test_a_signal_that_follows_the_order_at_once_is_not_lost(make: Make) -> None:
    made = make(WAIT, count=2)
    for _ in range(5):
        group = made.start(2)
        made.attend(group)
        group.send(signal.SIGTERM)
        assert made.finish(group) == [-signal.SIGTERM, -signal.SIGTERM]


# Parents whose forks are not to be trusted

UNFIT = {
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "what was imported has started 1 thread: ",
    ),
    "a device": (
        "import os\nkeep = os.open(os.environ['DEVICE'], os.O_RDONLY)",
        "what was imported has opened ",
    ),
    "a missing module": ("import nothing_of_that_name", "import unfit: ModuleNotFoundError: No module named 'nothing"),
    "a failing module": ("raise ValueError('two\\nlines')", "import unfit: ValueError: two: "),
    "an exit": ("import sys; sys.exit('no')", "import unfit: SystemExit: no: "),
    "an initialised GPU": (
        "import sys, types\nsys.modules['torch.cuda'] = types.SimpleNamespace(is_initialized=lambda: True)",
        "what was imported has used torch.cuda: ",
    ),
    "a GPU that forks can't use": (
        "import os, sys, types\npid = os.getpid()\n"
        "sys.modules['torch.cuda'] = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid)",
        "what was imported has used torch.cuda: ",
    ),
}


@pytest.mark.parametrize(("module", "reason"), UNFIT.values(), ids=UNFIT)
def test_unfit_parent(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str) -> None:
    if "DEVICE" in module:
        monkeypatch.setattr(warm, "_PROGRAM", str(tmp_path / "warm.py"))
        text = Path(workers.__file__).parents[1].joinpath("worker", "warm.py").read_text()
        (tmp_path / "warm.py").write_text(text.replace('"/dev/nvidia"', repr(str(tmp_path / "nvidia"))))
        (tmp_path / "nvidia0").touch()
        monkeypatch.setenv("DEVICE", str(tmp_path / "nvidia0"))
    made = make(SAY_WHO, ("json", "unfit"), unfit=module, count=2)
    for _ in range(2):
        assert made.run(2) == [0, 0]
    while made.warm is not None and made.warm.pid is not None:
        heard(made)
    (report,) = made.reports
    assert report.startswith(reason) and report.endswith("takes longer (workers.preload)")
    assert set(marked(made.facts.node)) == set()


def test_where_newborns_cannot_be_adopted_interpreters_are_fresh(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(on: bool) -> bool:
        raise PermissionError(errno.EPERM, "PR_SET_CHILD_SUBREAPER")

    monkeypatch.setattr(warm, "_set_subreaper", refuse)
    made = make(SAY_WHO)
    assert made.warm is not None and made.warm.pid is None and not made.warm.loading
    assert made.run() == [0]
    assert made.reports == [
        "newborns cannot be adopted: [Errno 1] PR_SET_CHILD_SUBREAPER; workers start in fresh interpreters"
    ]


def test_a_module_that_is_missing_is_named(make: Make) -> None:
    made = make(SAY_WHO, ("no_such_module",))
    assert made.run() == [0]
    while made.reports == []:
        heard(made)
    assert made.reports[0].startswith("import no_such_module: ModuleNotFoundError: No module named 'no_such_module': ")


# What is left


def test_orphans_are_reaped(make: Make) -> None:
    orphan = "import subprocess\nprint(subprocess.Popen(['sh', '-c', 'setsid sleep 0 & setsid sleep 1000 &']).wait())"
    made = make(orphan)
    before = children()
    with subprocess.Popen(["true"]) as ours:  # a zombie that is not theirs
        assert made.run() == [0]
        assert eventually(
            lambda: (made.warm is None or made.warm.reap_orphans([])) or children() - before == {ours.pid}
        )
        assert ours.wait() == 0


def test_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    before, fds = children(), sorted(os.listdir("/proc/self/fd"))
    (tmp_path / "train.py").write_text(SAY_WHO)
    with node(tmp_path, Entrypoint(script=str(tmp_path / "train.py")), ("json",), workers=2) as made:
        assert made.run(2) == [0, 0]
        assert made.warm is not None
        made.warm.park(2)
        assert all(select.select([birth], [], [], PATIENCE)[0] for birth in made.warm._parked)
        marker = made.facts.node
    assert list(marked(marker)) == []
    assert children() == before
    assert sorted(os.listdir("/proc/self/fd")) == fds


def test_the_parent_ends_with_its_agent(tmp_path: Path) -> None:
    """Also where no guard is left."""
    (tmp_path / "agent.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom hpcelastic.agent.warm import Warm, WarmSettings\n"
        "class NoGuard:\n    def spare(self, pid): pass\n"
        "warm = Warm(WarmSettings(['json'], ['train.py'], dict(os.environ)), NoGuard(), print)\n"
        "print(warm.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "agent.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as agent:
        assert agent.stdout is not None
        with watched(int(agent.stdout.readline())) as (parent,):
            assert parent.alive
            agent.kill()
            assert parent.ends()


def test_a_line_whose_other_end_has_gone_is_seen() -> None:
    ours, theirs = socket.socketpair()
    birth = warm.Birth(ours, set(), print)
    assert not birth.failed
    theirs.close()
    assert birth.failed and birth.process() is None
    birth.cancel()
