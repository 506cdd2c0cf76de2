"""The fence of a directory: once a round has claimed it, no older round of the same run publishes there.

A worker of an older round may be alive on a node that everybody believes dead (a *zombie*: stopped, its machine paused,
its filesystem hung), and may go on at any time, between any two system calls. POSIX has no conditional rename, so a
look at the newest round before the rename proves nothing. The condition is made a part of the rename instead. Every
round drafts in a directory of its own, on the filesystem of what it publishes::

    latest                           what readers read
    .publishing-RUN/round-0003       a plain file: round 3 is shut out
    .publishing-RUN/round-0004/      drafts of round 4

and a publication by round 4 ends with ``rename(.publishing-RUN/round-0004/DRAFT, latest)``. A claim by round R makes a
plain file of each name ``round-r`` with r < R: it creates that file exclusively, and where a directory has the name, it
moves the drafts out and removes the directory first, over and over if need be. The file stays for ever.

Why this is enough. Say that the claim of round R has returned, and let r < R.

1. The name ``round-r`` is a plain file's and stays one: nobody removes or replaces such a file. ``mkdir`` of it fails.
2. A directory that had the name before is gone, since the exclusive creation has succeeded. ``rmdir`` succeeds on an
   empty directory only, and nothing is created in a removed one, not even through a handle from before (ENOENT,
   ESTALE).
3. So no draft is left under a name that a worker of round r would rename, and none can be made: its ``rename`` fails
   for want of a source, whenever the filesystem carries it out and however late a hung client sends it.
4. The filesystem decides each of these steps on what is there. What a client has cached can make one fail or be tried
   in vain, never succeed wrongly: a name is believed to be shut only once it was seen as a plain file, which is final.

Hence every rename of an older round has taken effect before the claim returned. Round R publishes, and reads what it
starts from, only after that: a zombie's publication lands before the newer round's or is refused, never over it. Two
claims at once do each other's work; a claim by a zombie touches only rounds older than its own, which are shut out
already.

A draft is moved out, not removed in place: on NFS a client that removes a file which one of its own processes has open
leaves a ``.nfs…`` in the directory, and ``rmdir`` would fail for as long as a zombie on this very node sleeps.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode
from hpcelastic.store import files
from hpcelastic.store.backend import backend_of, birth
from hpcelastic.store.errnos import repeated
from hpcelastic.store.paths import RunPaths

from .context import context

_PREFIX = ".publishing-"
_REVOKED = "revoked-"
_PATIENCE = 60.0
"""Seconds for which a directory is tried to be removed: longer than a client remembers that a name was absent."""

_RACED = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST)
"""What a step says that another claim, or the zombie, was faster with."""


@dataclass(frozen=True)
class Fence:
    """What holds between the rounds of one run that publish in the same directory."""

    run: str
    """The run, told from one of the same name that was made anew; other runs are not fenced by it."""

    round: int
    """The round of this worker, 1 or more: the fencing token."""

    def claim(self, directory: Path) -> None:
        """Shut all older rounds out of ``directory``, which must exist: once this returns, none publishes there.

        Raises ``StoreError`` if a newer round has done so to this one, and ``OSError`` if the filesystem refuses.
        """
        fence = self._root(directory)
        _make(fence)
        self.refuse_zombie(directory)
        shut = _shut_out(fence)
        if left := [fence / name for name in map(_name, range(1, self.round)) if name not in shut]:
            for path in left:
                _shut(path)
            files.sync_directory(fence)
        _clear(fence)

    def drafts(self, directory: Path) -> Path:
        """Where this round drafts what it publishes in ``directory``, which it has claimed."""
        drafts = self._root(directory) / _name(self.round)
        _make(drafts)  # if it has been shut meanwhile, the next step will fail
        return drafts

    def refuse_zombie(self, directory: Path) -> None:
        """Raise ``StoreError`` if this round has been shut out of ``directory``: for the message, not for safety."""
        if _name(self.round) in _shut_out(self._root(directory)):
            raise StoreError(
                f"a newer round publishes in {directory}, so this worker of round {self.round} is a leftover and must "
                "not go on"
            )

    def _root(self, directory: Path) -> Path:
        return directory / f"{_PREFIX}{self.run}"


def this_round() -> Fence | None:
    """The fence on the side of this worker's round; None outside hpcelastic.

    Raises ``StoreError`` if a newer round has formed. That is a courtesy, which stops most zombies early.
    """
    here = context()
    if here.run_dir is None or here.round == 0:
        return None
    newest = _newest_round(here.run_dir)
    if newest > here.round:
        raise StoreError(
            f"round {newest} has formed; this worker of round {here.round} is a leftover and must not go on"
        )
    return Fence(_birth(here.run_dir), here.round)


def _name(round: int) -> str:
    return f"round-{round:04}"


def _make(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        repeated(lambda: os.mkdir(directory, 0o700))


def _shut_out(fence: Path) -> set[str]:
    """The rounds that are shut out, by name.

    By listing: a name that was asked for before it existed may stay absent for half a minute on NFS and MooseFS.
    """
    try:
        return repeated(lambda: _plain_files(fence))
    except FileNotFoundError:
        return set()


def _plain_files(directory: Path) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}


def _shut(path: Path) -> None:
    """Make ``path`` a plain file for good, whatever else has the name and whatever a zombie does meanwhile."""
    deadline, pace = time.monotonic() + _PATIENCE, 0.0
    while True:
        try:
            repeated(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)))
            return
        except FileExistsError:
            if path.name in _shut_out(path.parent):  # by another claim, or by us: a reply may be lost
                return
        if time.monotonic() > deadline:
            raise OSError(errno.ENOTEMPTY, "a worker of an older round keeps on writing", str(path))
        _remove_drafts(path)
        time.sleep(pace)
        pace = min(2 * pace + 0.001, 0.5)


def _remove_drafts(directory: Path) -> None:
    with _raced():
        for name in os.listdir(directory):
            with _raced():
                os.rename(directory / name, directory.parent / f"{_REVOKED}{secrets.token_hex(8)}")
        os.rmdir(directory)


def _clear(fence: Path) -> None:
    """Remove the drafts that claims have moved out: nobody names them any more."""
    for name in os.listdir(fence):
        if name.startswith(_REVOKED):
            with contextlib.suppress(OSError):  # a file too many is no reason to stop training
                os.unlink(fence / name)


@contextlib.contextmanager
def _raced() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _RACED:
            raise


@dataclass(frozen=True)
class _Newest:
    round: int


def _newest_round(run_dir: Path) -> int:
    version = backend_of(RunPaths(run_dir)).register(writer="").read()
    return decode(_Newest, version.value).round if version.number else 0


@cache  # a leftover of a run whose directory was made anew goes on under the old identity
def _birth(run_dir: Path) -> str:
    """What tells this run from one of the same name that was made anew."""
    return birth(RunPaths(run_dir))
