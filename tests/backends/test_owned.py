"""A process that another one owns ends with its owner, and not with the thread that has started it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcelastic.backends.owned import spawn_owned
from tests.cli.shell import eventually

OWNER = """\
import signal, sys
from hpcelastic.backends.owned import spawn_owned
print(spawn_owned(["/bin/sleep", "1000"]).pid, flush=True)
signal.pause()
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_owner(signum: int) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        owner.send_signal(signum)
    try:
        eventually(lambda: not runs(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_it_outlives_the_thread_that_has_started_it() -> None:
    found: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        found.append(spawn_owned(["/bin/sleep", "1000"]))
        eventually(lambda: Path(f"/proc/{found[0].pid}/comm").read_text() == "sleep\n")

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    (process,) = found
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    finally:
        process.kill()
        process.wait()


def test_its_thread_ends_with_it() -> None:
    before = set(threading.enumerate())
    process = spawn_owned(["/bin/sleep", "1000"])
    (owner,) = set(threading.enumerate()) - before
    process.kill()
    assert process.wait() == -signal.SIGKILL
    owner.join(60)
    assert not owner.is_alive()


def test_a_command_that_cannot_be_started_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="null byte"):
        spawn_owned(["/bin/true", "a\0b"])


def test_one_whose_owner_has_ended_before_does_not_start(tmp_path: Path) -> None:
    from hpcelastic.backends import owned_main

    gone = subprocess.Popen(["true"])
    gone.wait()
    subprocess.run([sys.executable, owned_main.__file__, str(gone.pid), "/bin/touch", str(tmp_path / "x")], check=True)
    assert os.listdir(tmp_path) == []
