"""Fixtures: a folder on every shared filesystem. Each filesystem is started once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from tests.filesystems.availability import require
from tests.filesystems.clients import MountSet
from tests.filesystems.mount_sets import SOURCES, Group, Source, make_folder

_NUMBERS = count()


@dataclass(frozen=True)
class Shared:
    """A new folder in the directory that the mount set's clients share."""

    source: Source
    mounts: MountSet
    folder: str


@dataclass(frozen=True)
class Started:
    """The filesystems that were started, by the name of their group. All end with the session."""

    groups: dict[str, Mapping[str, MountSet]]
    running: ExitStack

    def mounts(self, source: Source, request: pytest.FixtureRequest) -> MountSet:
        name = source.group.name
        if name not in self.groups:
            self.groups[name] = self._start(source.group, request)
        return self.groups[name][source.name]

    def _start(self, group: Group, request: pytest.FixtureRequest) -> Mapping[str, MountSet]:
        if group.name not in ("nfs", "moosefs", "glusterfs", "cephfs"):
            return self.running.enter_context(group.opened())
        mounts = request.getfixturevalue(group.name)  # other tests use the same servers
        return {mounts.name: mounts} if isinstance(mounts, MountSet) else mounts


@pytest.fixture(scope="session")
def started_filesystems() -> Iterator[Started]:
    with ExitStack() as running:
        yield Started({}, running)


def _starts_slowly(source: Source) -> bool:
    return source.group.slow


def on(nightly: Callable[[Source], bool] = _starts_slowly, sources: Iterable[Source] = SOURCES) -> list[Any]:
    """Return parameters for the fixture `shared`: these filesystems, some of them only at night, or once a week."""

    def marks(source: Source) -> list[pytest.MarkDecorator]:
        group = pytest.mark.xdist_group(source.group.name)
        if source.weekly:
            return [group, pytest.mark.weekly]
        return [group, pytest.mark.nightly] if nightly(source) else [group]

    return [pytest.param(source, id=source.name, marks=marks(source)) for source in sources]


@pytest.fixture(params=on())
def shared(request: pytest.FixtureRequest, started_filesystems: Started) -> Shared:
    """A folder on each filesystem in turn."""
    source: Source = request.param
    require(source.group.why_unavailable())
    mounts = started_filesystems.mounts(source, request)
    folder = f"test-{next(_NUMBERS)}"
    make_folder(mounts, folder)
    return Shared(source, mounts, folder)
