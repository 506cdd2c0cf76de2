"""Files that others read while we may die at any instruction.

Everything is drafted aside, made durable, then published under its name in one step; nothing is edited in place.
Other clients discover by listing a directory, never by polling a name: NFS remembers for half a minute that a name
was absent.
"""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError

DRAFT = ".draft-"
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_READ_TRIES = 5


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says which file, what happened, and what to do."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "the filesystem is full: free some space, then start the run again with --resume",
            errno.EDQUOT: "the disk quota is used up: free some space, then start the run again with --resume",
            errno.EACCES: "access is denied: use a directory that belongs to you on every node",
            errno.EPERM: "access is denied: use a directory that belongs to you on every node",
            errno.EROFS: "the filesystem is mounted read-only: use another directory",
            errno.ENOTDIR: "a part of the path is a file: use another directory",
        }.get(error.errno or 0, "check that the shared filesystem is mounted and answers on this node")
        raise StoreError(f"{path}: {error.strerror or error}; {advice}") from error


def make_directory(path: Path) -> None:
    """Create ``path`` and its parents, readable by the owner alone; fine if it exists."""
    with explained(path):
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:  # not mkdir(parents=True): that gives parents the rights of the umask
            make_directory(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)


def publish_new(path: Path, data: bytes) -> bool:
    """Create ``path`` with ``data``, durably, unless the name is taken: exactly one of many callers gets True.

    ``data`` must differ from every other caller's, so that each can tell its own. ``link`` is the step that counts. It
    may fail although it succeeded (a lost NFS reply), so the name's content decides then; where hard links are missing,
    a symbolic link to the draft is as exclusive and as complete.
    """
    with explained(path):
        draft = _write_draft(path, data)
        keep = False
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                keep = _symlink(draft, path)
                if not keep:
                    return False
            elif read(path) != data:
                if error.errno == errno.EEXIST:
                    return False
                raise
        finally:
            if not keep:
                _discard(draft)
        sync_directory(path.parent)
        return True


def publish(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Give ``path`` the content ``data`` in one step, whatever it held before."""
    with explained(path):
        draft = _write_draft(path, data, durable=durable)
        try:
            os.replace(draft, path)
        except BaseException:
            _discard(draft)
            raise
        if durable:
            sync_directory(path.parent)


def read(path: Path) -> bytes | None:
    """The content of ``path``; None where it does not exist. A file that is replaced while it is read is read again."""
    for attempt in range(_READ_TRIES):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _READ_TRIES - 1:
                raise
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
            return [name for name in os.listdir(directory) if not name.startswith(DRAFT)]
        except FileNotFoundError:
            return []


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable, where the filesystem can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _write_draft(path: Path, data: bytes, *, durable: bool = True) -> Path:
    """A complete file beside ``path``: some filesystems link only within a directory."""
    draft = path.with_name(f"{DRAFT}{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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


def _symlink(draft: Path, path: Path) -> bool:
    try:
        os.symlink(draft.name, path)
    except OSError as error:
        if path.is_symlink() and os.readlink(path) == draft.name:
            return True  # the reply was lost
        if error.errno == errno.EEXIST:
            return False
        if error.errno in _NO_HARD_LINKS:
            reason = "the filesystem has neither hard nor symbolic links; use another one for the run's directory"
            raise StoreError(f"{path}: {reason}") from error
        raise
    return True
