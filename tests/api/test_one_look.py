"""Repeated looks at a run whose filesystem may hang."""

import threading

import pytest

from hpcelastic.api.one_look import OneLook
from hpcelastic.storage.bounded import Hang, NotStarted
from tests.cli.shell import TIMEOUT, eventually


class Filesystem:
    """A filesystem that hangs until ``goes_on`` is set, and counts the reads."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.reads = 0

    def read(self) -> str:
        self.reads += 1
        assert self.goes_on.wait(TIMEOUT)
        return "content"


@pytest.fixture
def filesystem() -> Filesystem:
    return Filesystem()


@pytest.fixture
def look(filesystem: Filesystem) -> OneLook[str]:
    return OneLook(filesystem.read, "run r")


def test_a_look_returns_what_is_read(look: OneLook[str], filesystem: Filesystem) -> None:
    filesystem.goes_on.set()
    assert [look(TIMEOUT), look(TIMEOUT)] == ["content"] * 2


def test_no_other_look_begins_while_one_hangs(look: OneLook[str], filesystem: Filesystem) -> None:
    with pytest.raises(Hang, match=r"run r: no answer within 0\.01 s"):
        look(0.01)
    with pytest.raises(Hang, match=r"run r: no answer within 0\.01 s"):
        look(1e6)  # at once
    assert filesystem.reads == 1
    filesystem.goes_on.set()
    eventually(lambda: not look._lock.locked())
    assert look(TIMEOUT) == "content"


def test_a_second_caller_waits_for_the_first(look: OneLook[str], filesystem: Filesystem) -> None:
    found: list[str] = []
    callers = [threading.Thread(target=lambda: found.append(look(TIMEOUT))) for _ in range(2)]
    callers[0].start()
    eventually(lambda: filesystem.reads)
    callers[1].start()
    with pytest.raises(Hang, match=r"run r: no answer within 0\.01 s"):
        look(0.01)
    assert filesystem.reads == 1
    filesystem.goes_on.set()
    for caller in callers:
        caller.join(TIMEOUT)
    assert found == ["content"] * 2


def test_an_error_is_raised_and_the_next_look_reads_again() -> None:
    answers = iter([OSError("I/O error"), "content"])

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    look = OneLook(read, "run r")
    with pytest.raises(OSError, match="I/O error"):
        look(TIMEOUT)
    assert look(TIMEOUT) == "content"


def test_a_thread_that_cannot_start_blocks_no_later_look(
    look: OneLook[str], filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    filesystem.goes_on.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(NotStarted, match="can't start new thread"):
            look(TIMEOUT)
    assert look(TIMEOUT) == "content"
