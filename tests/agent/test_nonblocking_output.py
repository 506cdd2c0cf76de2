import errno
import os
import sys
import threading
from collections.abc import Callable

import pytest

from hpcelastic.agent import nonblocking_output
from hpcelastic.agent.nonblocking_output import NonBlockingOutput, nonblocking_stderr, nonblocking_stdio, text_stream
from hpcelastic.agent.report import reporter

TIMEOUT = 20.0


class Disk:
    """A replacement for os.write that writes only so many bytes while the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content = b""
        self.error = 0
        self.refused = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        monkeypatch.setattr(nonblocking_output, "_RETRY_DELAY", 0.001)
        monkeypatch.setattr(nonblocking_output.os, "write", self.write)

    def write(self, _fd: int, data: bytes) -> int:
        self.answers.wait(TIMEOUT)
        if self.error:
            self.refused.set()
            raise OSError(self.error, os.strerror(self.error))
        self.content += data[:3]
        return len(data[:3])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_all_output_is_written_in_order(disk: Disk) -> None:
    made = NonBlockingOutput(1)
    print("one", "ü", file=text_stream(made))
    made.write(b"two\n")
    assert made.drain(TIMEOUT)
    assert disk.content == "one ü\ntwo\n".encode()


def test_output_is_written_once_a_full_disk_has_space(disk: Disk) -> None:
    made = NonBlockingOutput(1)
    disk.error = errno.ENOSPC
    assert made.write(b"line\n") == 5
    assert disk.refused.wait(TIMEOUT)
    assert not made.drain(0.0)
    disk.error = 0
    assert made.drain(TIMEOUT)
    assert disk.content == b"line\n"


def test_a_hung_filesystem_does_not_block_the_caller(disk: Disk) -> None:
    made = NonBlockingOutput(1)
    disk.answers.clear()
    made.write(b"line\n")
    assert not made.drain(0.01)
    disk.answers.set()
    assert made.drain(TIMEOUT)


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EBADF])
def test_without_a_reader_output_is_dropped(code: int, disk: Disk) -> None:
    made = NonBlockingOutput(1)
    disk.error = code
    made.write(b"line\n")
    assert made.drain(TIMEOUT)
    assert disk.content == b""


def test_the_buffer_is_bounded_and_lost_output_is_reported(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonblocking_output, "_MAX_PENDING", 10)
    made = NonBlockingOutput(1)
    disk.error = errno.ENOSPC
    for line in (b"kept\n", b"also\n", b"lost\n", b"as well\n"):
        made.write(line)
    disk.error = 0
    assert made.drain(TIMEOUT)
    made.write(b"later\n")
    assert made.drain(TIMEOUT)
    assert disk.content == b"kept\nalso\n(13 bytes could not be written here)\nlater\n"


def test_a_slow_reader_is_waited_for(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonblocking_output, "_MAX_PENDING", 10)
    made = NonBlockingOutput(1, stall_timeout=TIMEOUT)
    lines = [b"line %d\n" % number for number in range(100)]
    for line in lines:
        made.write(line)
    assert made.drain(0.0)
    assert disk.content == b"".join(lines)


def test_a_reader_that_takes_nothing_is_waited_for_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonblocking_output, "_MAX_PENDING", 10)
    made, waits = NonBlockingOutput(1, stall_timeout=0.001), list[float | None]()
    real = made._changed.wait_for

    def wait_for(condition: Callable[[], bool], timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            waits.append(timeout)
        return real(condition, timeout)

    monkeypatch.setattr(made._changed, "wait_for", wait_for)
    disk.answers.clear()
    for _ in range(4):
        made.write(b"12345")
    assert waits == [0.001]
    disk.answers.set()
    assert made.drain(TIMEOUT)
    assert disk.content == b"1234512345"


def test_a_full_disk_is_not_waited_for(disk: Disk) -> None:
    made = NonBlockingOutput(1, stall_timeout=1e6)
    disk.error = errno.ENOSPC
    made.write(b"line\n")
    assert not made.drain(0.0)


def test_output_of_the_process_is_redirected_and_the_streams_are_restored(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with nonblocking_stdio():
        assert (sys.stdout, sys.stderr) != before
        print("to stdout")
        print("to stderr", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr() == ("to stdout\n", "to stderr\n")


def test_blocks_that_overlap_restore_the_streams_at_the_end_of_the_last(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    first, second = nonblocking_stdio(), nonblocking_stdio()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (sys.stdout, sys.stderr) != before
    print("in the second block")
    second.__exit__(None, None, None)
    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr() == ("in the second block\n", "")


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with nonblocking_stdio():
        started = set(threading.enumerate()) - before
        print("to stdout")
    assert started and not any(thread.is_alive() for thread in started)


def test_it_ends_only_after_all_output_is_written(disk: Disk) -> None:
    made = NonBlockingOutput(1)
    disk.answers.clear()
    made.write(b"line\n")
    made.stop()
    disk.answers.set()
    assert made.drain(TIMEOUT)
    assert disk.content == b"line\n"


def test_streams_without_a_file_are_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    with nonblocking_stdio():
        print("to stdout")
    assert capsys.readouterr().out == "to stdout\n"


def test_what_is_printed_to_a_stream_that_was_closed_before_the_start_appears_nowhere(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with nonblocking_stderr() as stream:
        reporter("n1", stream)("to stderr")
    with nonblocking_stdio():
        reporter("n1")("to stderr")
        print("to stdout")
    assert sys.stderr is None
    assert capfd.readouterr() == ("to stdout\n", "")


@pytest.mark.parametrize(("closed", "other"), [("stdout", "stderr"), ("stderr", "stdout")])
def test_a_closed_stream_does_not_let_the_other_one_block(
    closed: str, other: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, closed, None)
    before = getattr(sys, other)
    with nonblocking_stdio():
        assert getattr(sys, other) is not before
    assert getattr(sys, other) is before


def test_output_to_standard_error_alone_never_fails_and_the_stream_of_others_stays(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = sys.stderr
    with nonblocking_stderr() as stream:
        assert sys.stderr is before
        print("to stderr", file=stream)
    assert capfd.readouterr() == ("", "to stderr\n")
