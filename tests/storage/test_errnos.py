import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.storage import errnos, files
from hpcelastic.storage.errnos import RULES, advice, as_store_error, may_have_succeeded, poll_delays, retry

FINAL = ["ENOLCK", "ENOSYS", "ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "ENOTDIR", "ENOTCONN", "EMFILE", "ENOENT"]
BOUNDS = [
    pytest.param(errno.ESTALE, 5, id="ESTALE"),
    pytest.param(errno.EINTR, 5, id="EINTR"),
    pytest.param(errno.EAGAIN, 5, id="EAGAIN"),
    pytest.param(errno.EBUSY, 5, id="EBUSY"),
    pytest.param(errno.EIO, 3, id="EIO"),
    pytest.param(errno.ETIMEDOUT, 2, id="ETIMEDOUT"),
    pytest.param(errno.ENFILE, 3, id="ENFILE"),
    *(pytest.param(getattr(errno, name), 1, id=name) for name in FINAL),
]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    poll_delays: list[float] = []
    monkeypatch.setattr(time, "sleep", poll_delays.append)
    return poll_delays


def failing(code: int, times: int) -> tuple[Callable[[], str], list[int]]:
    """Return a call that fails with ``code`` so many ``times``, and the list of its calls."""
    calls: list[int] = []

    def call() -> str:
        calls.append(code)
        if len(calls) <= times:
            raise OSError(code, os.strerror(code))
        return "done"

    return call, calls


@pytest.mark.parametrize(("code", "tries"), BOUNDS)
def test_a_call_is_repeated_as_often_as_its_error_allows(slept: list[float], code: int, tries: int) -> None:
    call, calls = failing(code, tries - 1)
    assert retry(call) == "done"
    call, calls = failing(code, 100)
    slept.clear()
    with pytest.raises(OSError) as caught:
        retry(call)
    assert (caught.value.errno, len(calls), len(slept)) == (code, tries, tries - 1)
    assert slept == sorted(slept) and sum(slept) < 1, "growing delays, short because others wait for this thread"


def test_an_error_that_is_final_for_a_call_is_raised_at_once(slept: list[float]) -> None:
    call, calls = failing(errno.EIO, 1)
    with pytest.raises(OSError):
        retry(call, final=(errno.EIO,))
    assert (len(calls), slept) == (1, [])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(errno.EIO, True, id="the reply may be lost"),
        pytest.param(errno.ENOENT, True, id="the first request may have removed it"),
        pytest.param(errno.EEXIST, True, id="the first request may have made it"),
        pytest.param(errno.EROFS, False, id="permanently refused"),
        pytest.param(errno.ENOSPC, False, id="no space"),
    ],
)
def test_errors_after_which_a_call_may_have_taken_effect(code: int, expected: bool) -> None:
    assert may_have_succeeded(OSError(code, "")) is expected


@pytest.mark.parametrize("code", RULES, ids=errno.errorcode.get)
def test_every_error_has_its_path_and_a_remedy(tmp_path: Path, code: int) -> None:
    with pytest.raises(StoreError) as caught, as_store_error(tmp_path):
        raise OSError(code, os.strerror(code))
    assert str(caught.value) == f"{tmp_path}: {os.strerror(code)}; {advice(code)}"
    assert any(verb in advice(code) for verb in ("check", "use", "free", "raise the limit", "(ulimit -f)"))


def test_an_unknown_error_refers_to_the_mount() -> None:
    assert "is mounted" in advice(errno.EPROTO) == advice(None) == files.advice(errno.EPROTO)


def test_polls_become_rarer_and_end() -> None:
    looks = list(poll_delays(2.0))
    assert looks == sorted(looks) and looks[-1] <= 0.5
    assert 2.0 <= sum(looks) <= 3.0
    assert list(errnos.poll_delays(0)) == [0.01], "at least one poll"
