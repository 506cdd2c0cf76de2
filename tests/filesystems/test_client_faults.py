"""A client with the register's lock freezes, is cut off or dies: others continue, and it never overwrites them."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, Protocol, TypeAlias

import pytest

from hpcelastic.storage.locks import LOCK_TIMEOUT
from tests.filesystems.clients import Client, MountSet, Process, program, started

pytestmark = pytest.mark.nightly

TIMEOUT = 60.0
COMMITS = 9

_FOLDERS = count()


class Faulty(Client, Protocol):
    """A client with functions for faults."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def cut(self) -> None: ...
    def heal(self) -> None: ...
    def kill(self) -> None: ...
    def reboot(self) -> None: ...


Disturbed: TypeAlias = "Callable[[Faulty], AbstractContextManager[None]]"


@contextmanager
def frozen(client: Faulty) -> Iterator[None]:
    client.freeze()
    try:
        yield
    finally:
        client.thaw()


@contextmanager
def cut(client: Faulty) -> Iterator[None]:
    client.cut()
    try:
        yield
    finally:
        client.heal()


@contextmanager
def dead(client: Faulty) -> Iterator[None]:
    client.kill()
    try:
        yield
    finally:
        client.reboot()


NFS = ("NFSv3", "NFSv4.0", "NFSv4.2")
SETS = [
    *(pytest.param(name, marks=pytest.mark.xdist_group("nfs")) for name in NFS),
    pytest.param("moosefs", marks=pytest.mark.xdist_group("moosefs")),
    pytest.param("glusterfs", marks=[pytest.mark.xdist_group("glusterfs"), pytest.mark.weekly]),
]
"""Not CephFS: a lost client keeps its capabilities for a minute, and meanwhile no other client can use its files."""


@pytest.fixture(params=SETS)
def shared(request: pytest.FixtureRequest) -> MountSet:
    if request.param not in NFS:
        mounts: MountSet = request.getfixturevalue(request.param)
        return mounts
    sets: dict[str, MountSet] = request.getfixturevalue("nfs")
    if request.param not in sets:
        pytest.skip(f"the kernel of the guests has no {request.param}")
    return sets[request.param]


@pytest.fixture
def folder(shared: MountSet) -> str:
    """A new shared directory with a name that no client has ever looked up."""
    name = f"faults-{next(_FOLDERS)}"
    client = shared.clients[0]
    assert client.start(["mkdir", str(client.directory / name)]).wait(TIMEOUT) == 0
    return name


def hears(process: Process, key: str) -> Any:
    """Return the first value that the program prints under that key."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        for line in process.output().splitlines():
            if key in (document := _document(line)):
                return document[key]
        time.sleep(0.02)
    raise TimeoutError(f"no {key!r} in {TIMEOUT:g} s, but:\n{process.output()}")


def _document(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)  # type: ignore[no-any-return]  # what `contender` says
    except ValueError:
        return {}


def holds(client: Client, folder: str) -> AbstractContextManager[Process]:
    return started(client, program("contender", "hold", client.directory / folder, "holder"))


def commits(client: Client, folder: str, number: int = COMMITS) -> dict[str, Any]:
    process = client.start(program("contender", "commit", client.directory / folder, "other", number))
    assert process.wait(TIMEOUT) == 0, process.output()
    return _document(process.output().splitlines()[-1])


@pytest.mark.parametrize("disturbed", [frozen, cut, dead])
def test_commits_continue_without_the_lost_holder_of_the_lock(shared: Any, folder: str, disturbed: Disturbed) -> None:
    holder, other = shared.clients
    with holds(holder, folder) as held:
        hears(held, "read")
        with disturbed(holder):
            report = commits(other, folder)
    assert report["numbers"] == list(range(1, COMMITS + 1))
    first, *later = report["seconds"]
    released = shared.name == "GlusterFS" and disturbed is dead  # its server sees the end of the connection
    assert first >= LOCK_TIMEOUT or released
    assert statistics.median(later) < LOCK_TIMEOUT


@pytest.mark.parametrize("disturbed", [frozen, cut])
def test_a_holder_that_returns_cannot_commit_after_its_old_version(
    shared: Any, folder: str, disturbed: Disturbed
) -> None:
    holder, other = shared.clients
    commits(other, folder, 1)
    with holds(holder, folder) as held:
        assert hears(held, "read") == 1
        with disturbed(holder):
            commits(other, folder, 2)
        held.kill(signal.SIGUSR1)
        assert hears(held, "committed") is False
        assert hears(held, "newest") == "other"
        assert held.wait(TIMEOUT) == 0
    assert commits(other, folder, 1)["numbers"] == [4]
