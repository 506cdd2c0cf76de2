"""Files that others read while we may die at any instruction.

Everything is drafted aside, made durable, then published under its name in one step; nothing is edited in place.
Other clients discover by listing a directory, never by polling a name: NFS remembers for half a minute that a name
was absent.

Durable on return, against the loss of every machine: what `publish_new` and `publish` have published, content and name.
Not durable: what was published with ``durable=False``, the names of new directories, removals. A StoreError from a
publication leaves it open whether it has happened, unless its text says otherwise; to look is to know.
"""

import contextlib
import enum
import errno
import functools
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.store.errnos import advice as advice
from hpcelastic.store.errnos import doubtful, pauses, repeated
from hpcelastic.store.errnos import explained as explained
from hpcelastic.store.mounts import mount_of

FORGOTTEN = 40.0
"""Seconds after which a client has forgotten that a name was absent; NFS remembers it for 30 by default."""

_TICK = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds between looks at a server's clock, which moves every 1 to 10 ms."""

DRAFT = ".draft-"
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
_NO_LINKS = "the filesystem has neither hard nor symbolic links; use another one for the run's directory"


@dataclass
class Draft:
    """A complete, durable file beside the name that it is meant for; ``data`` differs from every other draft's."""

    path: Path
    target: Path
    data: bytes
    linked: bool = False
    """A symbolic link has made it what its target shows, or may have, so it must stay."""

    doubted: bool = False
    """An attempt to link it has failed, and may have succeeded all the same."""


class Claim(enum.Enum):
    """What became of a draft's claim to its name."""

    WON = "won"
    LOST = "lost"
    SWEPT = "swept"
    """Somebody has removed the draft, so it can't be published any more."""


def make_directory(path: Path) -> None:
    """Create ``path`` and its parents, readable by the owner alone; fine if it exists."""
    with explained(path):
        try:
            repeated(lambda: _mkdir(path))
        except FileNotFoundError:  # not mkdir(parents=True): that gives parents the rights of the umask
            make_directory(path.parent)
            repeated(lambda: _mkdir(path))


def publish_new(path: Path, data: bytes) -> bool:
    """Create ``path`` with ``data``, durably, unless the name is taken: exactly one of many callers gets True.

    ``data`` must differ from every other caller's, so that each can tell its own.
    """
    with drafted(path, data) as draft:
        claim = take(draft)
    if claim is Claim.SWEPT:
        raise StoreError(f"{path}: somebody has removed its draft; let nobody clean up in the directory of a run")
    return claim is Claim.WON


@contextlib.contextmanager
def drafted(path: Path, data: bytes) -> Iterator[Draft]:
    """A draft for ``path``, removed at the end unless it is what the name shows."""
    with explained(path):
        draft = Draft(_write_draft(path, data), path, data)
    try:
        yield draft
    finally:
        if not draft.linked:
            _discard(draft.path)
        stamp(path.parent)


def take(draft: Draft) -> Claim:
    """Publish ``draft`` under its name, durably, unless the name is taken.

    ``link`` is the step that counts. It may fail although it succeeded (a lost NFS reply), so what the directory holds
    decides then; where hard links are missing, a symbolic link to the draft is as exclusive and as complete.
    """
    with explained(draft.target):
        claim = repeated(lambda: _link(draft))
        if claim is Claim.WON:
            sync_directory(draft.target.parent)
        return claim


def publish(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Give ``path`` the content ``data`` in one step, whatever it held before."""
    with explained(path):
        draft = _write_draft(path, data, durable=durable)
        try:
            _replace(draft, path, data)
        except BaseException:
            _discard(draft)
            raise
        if durable:
            stamp(path.parent)
            sync_directory(path.parent)


def read(path: Path) -> bytes | None:
    """The content of ``path``; None where it does not exist. A file that is replaced while it is read is read again."""
    try:
        return repeated(path.read_bytes)
    except FileNotFoundError:
        return None


def read_json(path: Path) -> Any:
    """The JSON in ``path``, or None where it does not exist; StoreError where it is no JSON."""
    with explained(path):
        data = read(path)
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error}); the file was damaged, restore or remove it") from error


def to_json(value: Any) -> bytes:
    """JSON as all our files hold it: one line, ASCII."""
    return (json.dumps(value, separators=(",", ":")) + "\n").encode("ascii")


def names(directory: Path) -> list[str]:
    """The names in ``directory`` without drafts, unordered; none if it does not exist."""
    with explained(directory):
        try:
            return [name for name in _listed(directory) if not name.startswith(DRAFT)]
        except FileNotFoundError:
            return []


def drafts(directory: Path) -> dict[str, str]:
    """The drafts in ``directory``: each draft's name, and the name that it is meant for."""
    with explained(directory):
        found = [name for name in _listed(directory) if name.startswith(DRAFT)]
    return {name: name[len(DRAFT) :].rpartition(".")[0] for name in found}


def exists(path: Path) -> bool:
    """True if this client sees ``path``; of what others have just made, it may see nothing yet."""
    with explained(path):
        try:
            repeated(lambda: os.lstat(path))
        except FileNotFoundError:
            return False
        return True


def await_sight(path: Path) -> None:
    """Return once this client sees ``path``, which another has made; StoreError if that takes too long."""
    for pause in pauses(FORGOTTEN):
        if exists(path):
            return
        time.sleep(pause)
    raise StoreError(f"{path}: others have made it, and this node can't see it; {advice(errno.ENOENT)}")


def remove(path: Path) -> None:
    """Take the name ``path`` away; fine if it has gone."""
    with explained(path), contextlib.suppress(FileNotFoundError):
        repeated(lambda: os.unlink(path))


def stamp(directory: Path) -> None:
    """Give ``directory`` times that it never had, after the last of our changes there.

    A client that lists the directory between two changes with the same time never learns of the second: it goes on to
    show what was there after the first until the directory changes again. Clients of NFSv3 compare the time of the last
    change by the server's clock, which nobody can set and which moves in ticks, so there the clock is waited for.
    """
    with contextlib.suppress(OSError):
        _touch(directory)
        if _shows_changes_by_clock(directory):
            changed = _changed(directory)
            for pause in _TICK:
                time.sleep(pause)
                _touch(directory)
                if _changed(directory) != changed:
                    break


def _touch(directory: Path) -> None:
    """Set the time of the last modification to now."""
    now = time.time_ns()
    os.utime(directory, ns=(now, now))


def _changed(directory: Path) -> int:
    """The time of the last change, by the server's clock."""
    return os.stat(directory).st_ctime_ns


@functools.lru_cache(maxsize=256)
def _shows_changes_by_clock(directory: Path) -> bool:
    """Version 4 of NFS has a count of changes, which some servers derive from the clock."""
    return mount_of(directory).kind in ("nfs", "nfs4")


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable, where the filesystem can."""
    # A sync that has failed is not repeated: the second would say that all is well, and what was lost stays lost.
    repeated(lambda: _sync_directory(path), final=(errno.EIO,))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def _listed(directory: Path) -> list[str]:
    return repeated(lambda: os.listdir(directory))


def _mkdir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_dir():
            return
        if exists(path):
            raise
        await_sight(path)  # the server has it; this client remembers that it was absent
    else:
        stamp(path.parent)


def _write_draft(path: Path, data: bytes, *, durable: bool = True) -> Path:
    """A complete file beside ``path``: some filesystems link only within a directory."""
    # Repeated as a whole, under another name: after a failed sync only fresh pages can be trusted.
    return repeated(lambda: _try_draft(path, data, durable))


def _try_draft(path: Path, data: bytes, durable: bool) -> Path:
    draft = path.with_name(f"{DRAFT}{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:  # made by a request whose reply was lost: nobody else draws this name
        _discard(draft)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)  # which may be what says that the disk is full
    except BaseException:
        _discard(draft)
        raise
    return draft


def _discard(draft: Path) -> None:
    """Remove a draft if that can be done: readers skip it, and whether its content was published is decided."""
    with contextlib.suppress(OSError):
        os.unlink(draft)


def _replace(draft: Path, path: Path, data: bytes) -> None:
    failed = False

    def attempt() -> None:
        nonlocal failed
        try:
            os.replace(draft, path)
        except OSError as error:
            # Only we move the draft, so it has gone by an attempt whose reply was lost; this client may not see it yet.
            moved = failed and error.errno == errno.ENOENT and exists(path.parent)
            failed = True
            if not moved and not (doubtful(error) and read(path) == data):
                raise

    repeated(attempt)


def _link(draft: Draft) -> Claim:
    try:
        os.link(draft.path, draft.target)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return _symlink(draft)
        return _judge(draft, error)
    return Claim.WON


def _judge(draft: Draft, error: OSError) -> Claim:
    """What the claim came to when ``link`` has failed; ``error`` again where it came to nothing."""
    # Looked for in a listing first, or this client would remember the name as absent.
    held = read(draft.target) if draft.target.name in _listed(draft.target.parent) else None
    if held is not None:
        return Claim.WON if held == draft.data else Claim.LOST
    links = _links(draft.path)
    if links == 0:
        return Claim.SWEPT
    if links > 1:
        return Claim.WON  # it is there, and not yet seen by this client
    if error.errno != errno.EEXIST:
        draft.doubted = True
        raise error
    if not draft.doubted:
        return Claim.LOST
    # Ours or another's: a count of links may come from a cache, and only what the name holds can tell.
    await_sight(draft.target)
    return Claim.WON if read(draft.target) == draft.data else Claim.LOST


def _links(path: Path) -> int:
    """How many names the file ``path`` has; 0 if it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)  # to open it is to ask the server: a mere stat may be answered from a cache
    except OSError as error:
        if error.errno == errno.ENOENT:  # not ESTALE, which says nothing before the name is looked up anew
            return 0
        raise
    try:
        return os.fstat(fd).st_nlink
    finally:
        os.close(fd)


def _symlink(draft: Draft) -> Claim:
    draft.linked = True  # from here on it may be what the name shows, now or later, whatever the reply
    try:
        os.symlink(draft.path.name, draft.target)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            draft.linked = False
            raise StoreError(f"{draft.target}: {_NO_LINKS}") from error
        if _pointed(draft.target) != draft.path.name:  # else the reply was lost
            if _links(draft.path) == 0:
                return Claim.SWEPT
            if error.errno == errno.EEXIST:
                draft.linked = False
                return Claim.LOST
            raise
    if _links(draft.path) > 0:
        return Claim.WON
    _discard(draft.target)  # unlike a hard link, it could still be made when the draft had gone, and shows nothing
    return Claim.SWEPT


def _pointed(path: Path) -> str | None:
    """Where the symbolic link ``path`` leads to; None if there is none."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):  # what passes must not pass for another's claim
            raise
        return None
