"""The fence of a directory: once a round has claimed it, no older round of the same run can publish there.

A worker of an older round may be alive on a node that is believed dead (a *zombie*: stopped, its machine paused, its
filesystem hung). It may continue at any time, between any two system calls. POSIX has no conditional rename, so reading
the newest round before the rename proves nothing. Instead the condition is a part of the rename. Every round drafts in
a directory of its own, on the filesystem of what it publishes::

    latest                           the published file
    .publishing-RUN/round-0003       a plain file: round 3 is excluded
    .publishing-RUN/round-0004/      drafts of round 4

A publication by round 4 ends with ``rename(.publishing-RUN/round-0004/DRAFT, latest)``. A claim by round R creates a
plain file with each name ``round-r``, r < R. It creates that file exclusively. If a directory has the name, the claim
first moves the drafts out and removes the directory, and repeats that if necessary. The file stays forever.

Proof. Let the claim of round R have returned, and let r < R.

1. The name ``round-r`` belongs to a plain file and stays so: no process removes or replaces such a file. ``mkdir`` of
   the name fails.
2. A directory that had the name before is gone, because the exclusive creation succeeded. ``rmdir`` succeeds only on an
   empty directory, and nothing can be created in a removed directory, not even through an older handle (ENOENT,
   ESTALE).
3. So no draft is left under a name that a worker of round r would rename, and none can be created. The worker's
   ``rename`` fails because its source is missing, whenever the filesystem executes it and however late a hung client
   sends it.
4. The filesystem decides each of these steps by its actual content. A client's cache can make a step fail or be tried
   without effect, but never succeed wrongly: a client believes that a name is excluded only after it saw the name as a
   plain file, which is final.

Hence every rename of an older round has taken effect before the claim returned. Round R publishes, and reads the
checkpoint that it starts from, only after that: a zombie's publication lands before the newer round's or is refused; it
never overwrites it. Two claims at the same time do the same work together. A claim by a zombie affects only rounds
older than its own, which are excluded already.

A draft is moved out of the directory, not removed in place: if an NFS client removes a file that one of its own
processes has open, it leaves a ``.nfs…`` file in the directory, and ``rmdir`` would fail as long as a zombie on this
node sleeps.
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

from hpcelastic.backends.connect import open_backend, run_nonce
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import decode
from hpcelastic.storage import files
from hpcelastic.storage.errnos import retry
from hpcelastic.storage.paths import RunPaths

from .context import context
from .token import check_token

_FENCE_PREFIX = ".publishing-"
_REVOKED_PREFIX = "revoked-"
_EXCLUDE_TIMEOUT = 60.0
"""Seconds for which a claim tries to remove a directory: longer than a client caches that a name was absent."""

_RACE_ERRORS = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST)
"""The errors of a step if another claim, or the zombie, was faster."""


@dataclass(frozen=True)
class Fence:
    """The fence between the rounds of one run that publish in the same directory."""

    run: str
    """The nonce of the run, which differs between runs of the same name. The fence does not affect other runs."""

    round: int
    """The round of this worker, 1 or more: the fencing token."""

    def claim(self, directory: Path) -> None:
        """Exclude all older rounds from ``directory``, which must exist. After the return none can publish there.

        Raises ``StoreError`` if a newer round has excluded this one, and ``OSError`` if the filesystem refuses.
        """
        fence = self._root(directory)
        _make_directory(fence)
        self.refuse_zombie(directory)
        excluded = _excluded_rounds(fence)
        if remaining := [fence / name for name in map(_name, range(1, self.round)) if name not in excluded]:
            for path in remaining:
                _exclude(path)
            files.sync_directory(fence)
        _remove_revoked(fence)

    def drafts(self, directory: Path) -> Path:
        """Return the directory for this round's drafts of files in ``directory``, which the round has claimed."""
        drafts = self._root(directory) / _name(self.round)
        _make_directory(drafts)  # if the round was excluded meanwhile, the next step fails
        return drafts

    def refuse_zombie(self, directory: Path) -> None:
        """Raise ``StoreError`` if this round is excluded from ``directory``. For a clear message, not for safety."""
        if _name(self.round) in _excluded_rounds(self._root(directory)):
            raise StoreError(
                f"a newer round publishes in {directory}, so this worker of round {self.round} is outdated and must "
                "stop"
            )

    def _root(self, directory: Path) -> Path:
        return directory / f"{_FENCE_PREFIX}{self.run}"


def current_fence() -> Fence | None:
    """Return the fence of this worker's round; None outside hpcelastic.

    Raises ``StoreError`` if the round has ended on this node, or a newer round has formed. These checks stop most
    zombies early; safety does not need them.
    """
    worker = context()
    if worker.run_dir is None or worker.round == 0:
        return None
    check_token()
    newest = _newest_round(worker.run_dir)
    if newest > worker.round:
        raise StoreError(f"round {newest} has formed; this worker of round {worker.round} is outdated and must stop")
    return Fence(_run_nonce(worker.run_dir), worker.round)


def _name(round: int) -> str:
    return f"round-{round:04}"


def _make_directory(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        retry(lambda: os.mkdir(directory, 0o700))


def _excluded_rounds(fence: Path) -> set[str]:
    """Return the names of the excluded rounds.

    They are found by listing: NFS and MooseFS may cache for half a minute that a name was absent.
    """
    try:
        return retry(lambda: _plain_files(fence))
    except FileNotFoundError:
        return set()


def _plain_files(directory: Path) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}


def _exclude(path: Path) -> None:
    """Make ``path`` a plain file forever, whatever has the name now and whatever a zombie does meanwhile."""
    deadline, delay = time.monotonic() + _EXCLUDE_TIMEOUT, 0.0
    while True:
        try:
            retry(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)))
            return
        except FileExistsError:
            if path.name in _excluded_rounds(path.parent):  # by another claim, or by this one with a lost reply
                return
        if time.monotonic() > deadline:
            raise OSError(errno.ENOTEMPTY, "a worker of an older round keeps on writing", str(path))
        _remove_drafts(path)
        time.sleep(delay)
        delay = min(2 * delay + 0.001, 0.5)


def _remove_drafts(directory: Path) -> None:
    with _ignore_races():
        for name in os.listdir(directory):
            with _ignore_races():
                os.rename(directory / name, directory.parent / f"{_REVOKED_PREFIX}{secrets.token_hex(8)}")
        os.rmdir(directory)


def _remove_revoked(fence: Path) -> None:
    """Remove the drafts that claims have moved out. No process uses them any more."""
    for name in os.listdir(fence):
        if name.startswith(_REVOKED_PREFIX):
            with contextlib.suppress(OSError):  # an extra file is no reason to stop training
                os.unlink(fence / name)


@contextlib.contextmanager
def _ignore_races() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _RACE_ERRORS:
            raise


@dataclass(frozen=True)
class _StateRound:
    round: int


def _newest_round(run_dir: Path) -> int:
    with contextlib.closing(open_backend(RunPaths(run_dir))) as backend:
        version = backend.register(writer="").read()
    return decode(_StateRound, version.value).round if version.number else 0


@cache  # a worker that outlives its run keeps the old nonce if the run's directory is created again
def _run_nonce(run_dir: Path) -> str:
    """Return the nonce of the run, which differs between runs of the same name."""
    return run_nonce(RunPaths(run_dir))
