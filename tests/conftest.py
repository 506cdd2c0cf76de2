"""Setup for all tests: the signals of a fresh login shell, a registry of runs that is not the user's own, descriptors
with high numbers, an etcd server, and filesystems that take seconds to start, each started once for all tests that use
it."""

from __future__ import annotations

import os
import resource
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hpcelastic.backends.etcd_server import EtcdServer
from tests.filesystems.availability import require, why_no_cephfs, why_no_glusterfs, why_no_moosefs, why_no_nfs
from tests.filesystems.cephfs import cephfs_mounts
from tests.filesystems.glusterfs import glusterfs_mounts
from tests.filesystems.moosefs import moosefs_mounts
from tests.filesystems.nfs import nfs_mounts

pytest_plugins = ["tests.tiers"]


def _default_signals() -> None:
    """Undo what this process has inherited: signals that are ignored, and signals that are blocked.

    A shell starts a background job with SIGINT ignored, nohup ignores SIGHUP, and some CI systems block signals. All
    processes that a test starts would inherit that. Called as this file is imported: before any test, before xdist
    starts its workers, and in each of these.
    """
    pythons_own = {signal.SIGPIPE, signal.SIGXFSZ}  # the interpreter ignores them; subprocess restores them in children
    for signum in signal.valid_signals() - pythons_own:
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_default_signals()

# No property depends on the speed of the machine.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

os.environ["HPCELASTIC_CONFIG"] = ""  # not the profiles of the user
os.environ["HPCELASTIC_SITE_CONFIG"] = ""  # not the file of the site


@pytest.fixture(autouse=True)
def registry_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test record a run in the user's registry or find a run of another test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{secrets.token_hex(6)}"))


@pytest.fixture
def high_descriptors() -> Iterator[None]:
    """New descriptors have numbers above 1023."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    lower = [os.open(os.devnull, os.O_RDONLY)]
    while lower[-1] < 1024:
        lower.append(os.dup(lower[0]))
    yield
    for fd in lower:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd server with both versions of the interface, without TLS."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


def _filesystem(name: str, opened: Callable[[], AbstractContextManager[Any]], why: Callable[[], str | None]) -> Any:
    """Return a fixture with a filesystem. Tests that use it have `xdist_group(name)`, or it starts twice."""

    @pytest.fixture(scope="session", name=name)
    def mounts() -> Iterator[Any]:
        require(why())
        with opened() as started:
            yield started

    return mounts


nfs = _filesystem("nfs", nfs_mounts, why_no_nfs)
moosefs = _filesystem("moosefs", moosefs_mounts, why_no_moosefs)
glusterfs = _filesystem("glusterfs", glusterfs_mounts, why_no_glusterfs)
cephfs = _filesystem("cephfs", cephfs_mounts, why_no_cephfs)
