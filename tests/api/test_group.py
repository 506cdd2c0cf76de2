"""A run that is shared with a group: what its members see and may do, and what nobody else may."""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import hpcelastic
from hpcelastic.api.jobs import LocalNodes, end_jobs, live_jobs, record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.liveness import LivenessMonitor
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run, find_runs
from hpcelastic.api.steering import checkpoint
from hpcelastic.config import choose_profile
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.events import GroupRequest
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.requests import Change, Request, ask
from hpcelastic.storage import files
from hpcelastic.storage.events import read_events
from hpcelastic.storage.mailbox import Mailbox
from hpcelastic.storage.modes import MAILBOX, SHARED, is_shared
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import WAITS, job
from tests.cli.shell import MARK, eventually, shell_in
from tests.users import GROUP, MEMBER, OUTSIDER, as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which every user may enter. All processes that are started here end with the test."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o711)
    (directory / "train.py").write_text(WAITS)
    with shell_in(directory) as shell:
        monkeypatch.chdir(directory)
        monkeypatch.setenv(MARK, shell.mark)
        yield directory
    shutil.rmtree(directory)


def shared(name: str = "r", **more: Any) -> RunPaths:
    """Create a shared run without agents."""
    return prepare(resolve({**job(name), "run": {"name": name, "group": GROUP.gr_name, **more}}, []))


@pytest.fixture
def run(place: Path) -> Iterator[Run]:
    """A shared run of two nodes in its first round."""
    document = {**job(nodes=2), "run": {"name": "r", "group": GROUP.gr_name}}
    started = hpcelastic.submit(document, executor="local")
    eventually(lambda: started.status().phase == "running")
    yield started
    (place / "finish").touch()


def requests_in(run: Run) -> list[GroupRequest]:
    paths = RunPaths(run.directory)
    return [logged.event for logged in read_events(paths.events) if isinstance(logged.event, GroupRequest)]


def test_a_member_sees_the_run_and_changes_it(run: Run) -> None:
    directory = run.directory
    assert as_user(MEMBER, lambda: Run(directory).status().phase) == "running"
    eventually(lambda: "hello" in " ".join(run.logs()))
    assert "hello" in " ".join(as_user(MEMBER, lambda: list(Run(directory).logs())))
    assert "allocated node time" in as_user(MEMBER, lambda: str(Run(directory).goodput()))

    assert "round 1 stops" in as_user(MEMBER, lambda: checkpoint(Run(directory).reader, anyway=True))
    eventually(lambda: run.status().phase == "running" and run.status().round == 2)
    [request] = requests_in(run)
    assert (request.author, request.request, request.refusal) == (f"user {MEMBER}", "checkpoint", None)

    node = run.status().nodes[1].name
    assert as_user(MEMBER, lambda: Run(directory).drain(node)) == [node]
    assert as_user(MEMBER, lambda: str(Run(directory).cancel().phase)) == "closed", "one node waits for another one"
    assert run.status().reason == f"cancelled by user {MEMBER}"
    assert as_user(MEMBER, lambda: str(Run(directory).cancel().phase)) == "closed", "it has ended: nobody is asked"
    assert [request.request for request in requests_in(run)] == ["checkpoint", f"drain {node}", "cancel"]


def test_others_see_nothing(run: Run) -> None:
    directory = run.directory
    for call in (lambda: str(Run(directory).status()), lambda: os.listdir(directory), lambda: ask_to_cancel(directory)):
        assert "error" in as_user(OUTSIDER, call)
    assert run.status().phase == "running"


def ask_to_cancel(directory: Path) -> None:
    ask(RunPaths(directory), Request(Change.CANCEL), timeout=5)


def test_modes(run: Run) -> None:
    eventually(lambda: "hello" in " ".join(run.logs()))
    root = run.directory
    found, paths = dict[Path, int](), RunPaths(root)
    for path in (root, *root.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # agents rename their leases
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode):
                found[path] = stat.S_IMODE(status.st_mode)
                assert status.st_gid == GROUP.gr_gid, path
    assert found[root] == SHARED
    assert found[paths.mailbox] == MAILBOX
    assert found[paths.key] == 0o600
    for path, mode in found.items():
        assert not mode & stat.S_IWGRP or path == paths.mailbox, f"{path} {mode:o}"
        assert not mode & stat.S_IWOTH, f"{path} {mode:o}"
    unreadable = {path for path, mode in found.items() if not mode & stat.S_IRGRP}
    assert {path.name for path in unreadable} <= {"key", "lock"}


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.parametrize("umask", [0o002, 0o077], indirect=True)
@pytest.mark.usefixtures("umask")
def test_the_umask_has_no_effect(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "pkg/sub").mkdir(parents=True)
    (place / "pkg/sub/data").touch()
    (place / "pkg/sub/data").chmod(0o666)
    (place / "pkg/start.sh").touch()
    (place / "pkg/start.sh").chmod(0o775)
    paths = shared(code=["pkg", "train.py"])
    monkeypatch.setattr(subprocess, "Popen", mock.Mock())
    nodes = LocalNodes(paths, 1)
    nodes.start_node(0)
    files.make_directory(paths.slurm)
    record_job(paths, "17")

    assert as_user(MEMBER, lambda: Run(paths.root).status().phase) == "joining"
    assert stat.S_IMODE(paths.mailbox.stat().st_mode) == MAILBOX
    code = paths.submission(1) / "code"
    for directory in (code, code / "pkg", code / "pkg/sub"):
        assert stat.S_IMODE(directory.stat().st_mode) == SHARED, directory
    for path in (paths.jobs, nodes.log(0), code / "train.py", code / "pkg/sub/data"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640, path
    assert stat.S_IMODE((code / "pkg/start.sh").stat().st_mode) == 0o750


def test_a_function_is_for_the_owner_alone(place: Path) -> None:
    paths = shared()
    prepared = prepare(resolve({**job("f"), "run": {"name": "f", "group": GROUP.gr_name}}, []), (print, ()))
    assert not paths.function.exists()
    assert stat.S_IMODE(prepared.function.stat().st_mode) == 0o600


def test_a_run_without_a_group_is_for_its_owner_alone(place: Path) -> None:
    paths = prepare(resolve(job(), []))
    for path in (paths.root, *paths.root.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert "error" in as_user(MEMBER, lambda: str(Run(paths.root).status()))


def test_a_member_creates_files_in_the_mailbox_only(place: Path) -> None:
    paths = shared()
    directories = [path for path in (paths.root, *paths.root.rglob("*")) if path.is_dir()]

    def created() -> list[str]:
        done = []
        for directory in directories:
            with contextlib.suppress(PermissionError):
                (directory / "mine").touch()
                done.append(str(directory))
        return done

    assert as_user(MEMBER, created) == [str(paths.mailbox)]


def test_a_member_cannot_remove_or_change_the_request_of_another(place: Path) -> None:
    paths = shared()
    name = Mailbox(paths).put(b"{}")

    def interfere() -> list[str]:
        target = paths.mailbox / name
        done = []
        for change in (target.unlink, lambda: target.write_text("x"), lambda: target.rename(target.with_name("y"))):
            with contextlib.suppress(PermissionError):
                change()
                done.append(str(change))
        return done

    assert as_user(MEMBER, interfere) == []


def send_hostile_messages(mailbox: Path) -> None:
    names = (mailbox / f"{number:016x}.json" for number in range(20))
    next(names).symlink_to("/etc/passwd")
    os.mkfifo(next(names))
    next(names).mkdir()
    next(names).write_bytes(b"\xff{")
    next(names).write_text("[" * 4000)
    next(names).write_text('{"change": "cancel"}' + " " * 5000)
    next(names).write_text('{"change": "run", "nodes": ["id"]}')
    next(names).write_text('{"change": "drain", "nodes": "all"}')
    next(names).write_text('{"change": "drain", "nodes": ["../../x\\nroot has requested: cancel"]}')
    next(names).write_text('{"change": "drain", "nodes": ["n99"]}')
    (mailbox / ".draft-0").write_text('{"change": "cancel"}')
    (mailbox / "request.json").write_text('{"change": "cancel"}')


def test_hostile_messages_have_no_effect_and_the_next_request_is_executed(run: Run) -> None:
    paths = RunPaths(run.directory)
    assert as_user(MEMBER, lambda: send_hostile_messages(paths.mailbox)) is None
    assert as_user(MEMBER, lambda: ask(paths, Request(Change.CHECKPOINT))) is None
    eventually(lambda: run.status().phase == "running" and run.status().round == 2)
    eventually(lambda: len(requests_in(run)) >= 8)  # the two nodes share them: the last one may come later
    executed = [request for request in requests_in(run) if request.refusal is None]
    refused = [request for request in requests_in(run) if request.refusal is not None]
    assert [request.request for request in executed] == ["checkpoint"]
    assert sorted(request.request for request in refused) == ["drain n99"] + ["something unknown"] * 6
    assert run.status().phase == "running"


def test_nobody_answers(place: Path) -> None:
    paths = shared()
    answer = as_user(MEMBER, lambda: ask(paths, Request(Change.CANCEL), timeout=0.5))
    assert answer["error"].startswith(f"ConfigError: {paths.root}: no agent has answered in 0.5 s; look at")
    assert Mailbox(paths).empty, "the request is withdrawn"


def test_each_message_is_taken_once(place: Path) -> None:
    paths = shared()
    mailbox = Mailbox(paths)
    names = sorted(mailbox.put(b"{}") for _ in range(20))
    first, second = mailbox.take(), Mailbox(paths).take()
    taken = [next(first).name, next(second).name, *(message.name for message in (*first, *second))]
    assert sorted(taken) == names


def test_old_answers_are_removed(place: Path) -> None:
    mailbox = Mailbox(shared())
    old = mailbox.put(b"{}")
    mailbox.answer(next(mailbox.take()), b"1")
    assert mailbox.answer_to(old) == b"1"
    os.utime(mailbox._paths.answers / old, (0, 0))
    new = mailbox.put(b"{}")
    mailbox.answer(next(mailbox.take()), b"2")
    assert files.names(mailbox._paths.answers) == [new]


def test_an_answer_stays_although_the_clock_of_the_node_is_wrong(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox, now = Mailbox(shared()), time.time()
    name = mailbox.put(b"{}")
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    mailbox.answer(next(mailbox.take()), b"1")
    assert mailbox.answer_to(name) == b"1"


def test_a_mailbox_that_fails_is_a_store_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(shared())
    name = mailbox.put(b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(StoreError, match="Input/output error"):
            mailbox.withdraw(name)


def test_a_directory_that_another_process_is_making_belongs_to_the_shared_run(place: Path) -> None:
    paths = shared()
    directory = paths.logs / "round-0007"
    directory.mkdir(mode=0o700)  # with the umask 077, before the mode is set
    directory.chmod(SHARED & ~0o070)
    assert is_shared(directory)
    directory.chmod(0o700)
    is_shared.cache_clear()
    assert not is_shared(directory)


def test_private_runs_of_others_are_left_out(place: Path) -> None:
    paths = shared()
    prepare(resolve(job("private"), []))
    paths.root.parent.chmod(0o755)
    assert as_user(MEMBER, lambda: [run.name for run in find_runs(paths.root.parent)]) == ["r"]
    message = as_user(OUTSIDER, lambda: str(Run(paths.root)))["error"]
    assert message.startswith("PermissionError: ") and str(paths.root) in message


def test_no_profile_is_found_in_the_home_directory_of_another_user(place: Path) -> None:
    (place / "home").mkdir(mode=0o700)
    assert as_user(MEMBER, lambda: choose_profile(None, {"HOME": str(place / "home")})) is None


SQUEUE = """\
#!/bin/sh
case "$*" in
*--user=0* | *--me*) [ -e {place}/hides ] || [ $(id -u) != 0 -a "$2" = --me ] || echo 17 PENDING ;;
*--user={member}*) echo 18 PENDING ;;
esac
"""
"""It shows job 17 of root, and job 18 of a member."""


@pytest.fixture
def commands(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of SLURM's commands, the first one in PATH."""
    directory = place / "bin"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "squeue").write_text(SQUEUE.format(place=place, member=MEMBER))
    (directory / "scancel").write_text(f'#!/bin/sh\necho "$@" >{place}/cancelled\n')
    for command in directory.iterdir():
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


@pytest.mark.usefixtures("commands")
def test_a_member_sees_the_jobs_of_the_owner(place: Path) -> None:
    paths = shared()
    files.make_directory(paths.slurm)
    record_job(paths, "17")
    assert live_jobs(paths) == {"17": "PENDING"}
    assert as_user(MEMBER, lambda: live_jobs(paths)) == {"17": "PENDING"}
    (place / "hides").touch()
    assert live_jobs(paths) == {}
    message = as_user(MEMBER, lambda: live_jobs(paths))["error"]
    assert message == "SlurmError: squeue lists no job of root; it may show you only your own"
    check = as_user(MEMBER, lambda: LivenessMonitor(Run(paths.root).reader)._has_active_agents())
    assert check is True, "the job may wait"


@pytest.mark.usefixtures("commands")
def test_root_sees_and_cancels_the_jobs_of_a_user(place: Path) -> None:
    ours, paths = prepare(resolve(job("ours"), [])), prepare(resolve(job(), []))
    for each, id in ((ours, "17"), (paths, "18")):
        files.make_directory(each.slurm)
        record_job(each, id)
    os.chown(paths.root, MEMBER, MEMBER)
    assert live_jobs(paths) == {"18": "PENDING"}
    end_jobs(Run(ours.root).reader, Run(paths.root).reader)
    assert (place / "cancelled").read_text() == "--quiet 17 18\n"


# Bad input


def test_an_unknown_group(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.group is 'nobody-here', but there is no such group"):
        prepare(resolve({**job(), "run": {"name": "r", "group": "nobody-here"}}, []))
    assert not (place / "runs").exists()


def test_a_group_of_others(place: Path) -> None:
    place.chmod(0o777)
    message = as_user(OUTSIDER, lambda: str(shared()))["error"]
    assert message == f"ConfigError: run.group is {GROUP.gr_name!r}, but you are not in this group; `id` lists yours"


def test_a_directory_that_the_group_cannot_enter(place: Path) -> None:
    place.chmod(0o700)
    with pytest.raises(ConfigError, match=f"this group cannot enter {place}, whose mode is 700; set run.directory"):
        shared()


def test_the_group_of_a_run_does_not_change(place: Path) -> None:
    shared()
    with pytest.raises(ConfigError, match=f"run.group was {GROUP.gr_name} when the run was created, and cannot change"):
        prepare(resolve(job(), []), resume=True)


def test_a_member_cannot_scale_or_request_stacks(run: Run) -> None:
    directory = run.directory
    message = as_user(MEMBER, lambda: str(Run(directory).scale(1)))["error"]
    assert message == "ConfigError: r: only its owner, root, may scale it, because that submits jobs"
    message = as_user(MEMBER, lambda: str(Run(directory).stacks()))["error"]
    assert message == "ConfigError: r: only its owner, root, may request stacks"
    assert run.status().phase == Phase.RUNNING.value
