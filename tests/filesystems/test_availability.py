"""A test that cannot run here is skipped with the reason. In continuous integration it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.filesystems.availability import require, why_no_cephfs, why_no_glusterfs, why_no_moosefs, why_no_nfs

pytestmark = pytest.mark.nightly

REASONS = {
    "NFS": (why_no_nfs, "tests/install_system.sh as root"),
    "MooseFS": (why_no_moosefs, "tests/install_system.sh as root"),
    "GlusterFS": (why_no_glusterfs, "tests/install_system.sh --weekly as root"),
    "CephFS": (why_no_cephfs, "tests/install_system.sh --weekly as root"),
}


def forget() -> None:
    for why, _ in REASONS.values():
        why.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the caches of reasons, before and after the test."""
    forget()
    yield
    forget()


@pytest.mark.parametrize(("why", "remedy"), REASONS.values(), ids=REASONS)
def test_the_reason_names_missing_programs_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, fresh: None, why: Callable[[], str | None], remedy: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    reason = why()
    assert reason and "unshare" in reason and reason.endswith(remedy)


@pytest.mark.parametrize("ci", ["", "1"], ids=["here", "in continuous integration"])
def test_without_a_reason_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    skipped = True
    with contextlib.suppress(pytest.skip.Exception):  # otherwise it would skip this test
        require(None)
        skipped = False
    assert not skipped


def test_a_reason_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such thing"):
        require("no such thing")


def test_in_continuous_integration_a_reason_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        require("no such thing")
