"""A test that can't run here says why, and where it must run it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.filesystems.availability import require, why_no_moosefs, why_no_nfs

pytestmark = pytest.mark.nightly

REASONS = [pytest.param(why_no_nfs, id="NFS"), pytest.param(why_no_moosefs, id="MooseFS")]


def forget() -> None:
    for why in (why_no_nfs, why_no_moosefs):
        why.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Reasons are looked for once; in the test, and after it, anew."""
    forget()
    yield
    forget()


@pytest.mark.parametrize("why", REASONS)
def test_what_is_not_installed_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, fresh: None, why: Callable[[], str | None]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    reason = why()
    assert reason and "unshare" in reason and "tests/install_system.sh" in reason


def test_no_reason_is_no_skip() -> None:
    require(None)


def test_a_reason_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such thing"):
        require("no such thing")


def test_in_continuous_integration_a_reason_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        require("no such thing")
