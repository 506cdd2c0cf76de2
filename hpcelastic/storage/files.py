"""Files that other processes read while the writer may die at any instruction.

A writer creates a draft beside the name, makes it durable, then publishes it under the name in one step. No file is
edited in place. Clients discover files by listing a directory, never by polling a name: NFS caches for half a minute
that a name was absent.

Durable on return, against the loss of every machine: what `publish_new` and `publish` have published, content and name.
Not durable: what was published with ``durable=False``, the names of new directories, removals. After a StoreError from
a publication the file may or may not be published, unless the error's text says otherwise. The caller must check.
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
from hpcelastic.storage import modes
from hpcelastic.storage.errnos import advice as advice
from hpcelastic.storage.errnos import as_store_error as as_store_error
from hpcelastic.storage.errnos import may_have_succeeded, poll_delays, retry
from hpcelastic.storage.mounts import Mount, mount_of

NEGATIVE_CACHE_TIMEOUT = 40.0
"""Seconds after which a client no longer caches that a name was absent. The default of NFS is 30."""

_CLOCK_POLL_DELAYS = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds between polls of a server's clock, which advances every 1 to 10 ms."""

DRAFT_PREFIX = ".draft-"
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
_NO_LINKS_MESSAGE = "the filesystem has neither hard nor symbolic links; use another one for the run's directory"


@dataclass
class Draft:
    """A complete, durable file beside its target name. Its ``data`` differs from that of every other draft."""

    path: Path
    target: Path
    data: bytes
    is_link_target: bool = False
    """True if the target is a symbolic link to this draft, or may be one. The draft must then stay."""

    link_uncertain: bool = False
    """True if an attempt to link the draft failed but may have taken effect."""


class LinkResult(enum.Enum):
    """The result of linking a draft to its target name."""

    CREATED = "won"
    NAME_TAKEN = "lost"
    DRAFT_REMOVED = "swept"
    """The draft was removed, so it can't be published any more."""


def make_directory(path: Path, within: Path | None = None) -> None:
    """Create ``path`` and its parents, for the owner alone unless the run is shared. No error if it exists.

    If ``within`` is missing, the filesystem may not be mounted. Then nothing is created, and StoreError raised.
    """
    with as_store_error(path):
        try:
            retry(lambda: _mkdir(path))
        except FileNotFoundError:  # not mkdir(parents=True), which creates parents with the mode of the umask
            if within in (path, path.parent):
                raise
            make_directory(path.parent, within)
            retry(lambda: _mkdir(path))


def publish_new(path: Path, data: bytes, *, private: bool = False) -> bool:
    """Create ``path`` with ``data``, durably, unless the name is taken. Exactly one of many callers gets True.

    ``data`` must differ from the data of every other caller, so that a caller recognizes its own file.
    """
    with new_draft(path, data, private=private) as draft:
        result = link_draft(draft)
    if result is LinkResult.DRAFT_REMOVED:
        raise StoreError(f"{path}: its draft was removed by another process; do not clean up in the directory of a run")
    return result is LinkResult.CREATED


@contextlib.contextmanager
def new_draft(path: Path, data: bytes, *, private: bool = False) -> Iterator[Draft]:
    """Create a draft for ``path``; remove it at the end of the block unless ``path`` is a symbolic link to it."""
    with as_store_error(path):
        draft = Draft(_write_draft(path, data, private=private), path, data)
    try:
        yield draft
    finally:
        if not draft.is_link_target:
            _discard(draft.path)
        touch_directory(path.parent)


def link_draft(draft: Draft) -> LinkResult:
    """Publish ``draft`` under its name, durably, unless the name is taken.

    ``link`` is the atomic step. It may fail although it took effect (a lost NFS reply); the content of the directory
    decides then. On a filesystem without hard links, a symbolic link to the draft is equally exclusive and complete.
    """
    with as_store_error(draft.target):
        if (result := retry(lambda: _try_link(draft))) is LinkResult.CREATED:
            sync_directory(draft.target.parent)
        return result


def publish(path: Path, data: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Replace the content of ``path`` with ``data`` in one step. A ``private`` file is for the owner alone."""
    with as_store_error(path):
        draft = _write_draft(path, data, durable=durable, private=private)
        try:
            _replace(draft, path, data)
        except BaseException:
            _discard(draft)
            raise
        if durable:
            touch_directory(path.parent)
            sync_directory(path.parent)


def read(path: Path) -> bytes | None:
    """Return the content of ``path``; None if it does not exist. A file that is replaced during the read is re-read."""
    try:
        return retry(path.read_bytes)
    except FileNotFoundError:
        return None


def read_json(path: Path) -> Any:
    """Return the JSON in ``path``; None if the file does not exist. Raises StoreError if it is not JSON."""
    with as_store_error(path):
        data = read(path)
    try:
        return None if data is None else json.loads(data)
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error}); the file was damaged, restore or remove it") from error


def to_json(value: Any) -> bytes:
    """Encode ``value`` as one line of JSON in ASCII, the format of all our files."""
    return (json.dumps(value, separators=(",", ":")) + "\n").encode("ascii")


def names(directory: Path) -> list[str]:
    """Return the names in ``directory`` without drafts, in no order; an empty list if it does not exist."""
    with as_store_error(directory):
        try:
            return [name for name in _list_directory(directory) if not name.startswith(DRAFT_PREFIX)]
        except FileNotFoundError:
            return []


def drafts(directory: Path) -> dict[str, str]:
    """Return the drafts in ``directory``: the name of each draft, and its target name."""
    with as_store_error(directory):
        found = [name for name in _list_directory(directory) if name.startswith(DRAFT_PREFIX)]
    return {name: name[len(DRAFT_PREFIX) :].rpartition(".")[0] for name in found}


def exists(path: Path) -> bool:
    """Return True if this client sees ``path``. It may not see yet what another client has just created."""
    with as_store_error(path):
        try:
            retry(lambda: os.lstat(path))
        except FileNotFoundError:
            return False
        return True


def await_visible(path: Path) -> None:
    """Wait until this client sees ``path``, which another client has created; StoreError if that takes too long."""
    for pause in poll_delays(NEGATIVE_CACHE_TIMEOUT):
        if exists(path):
            return
        time.sleep(pause)
    raise StoreError(f"{path}: another node has created it, and this node can't see it; {advice(errno.ENOENT)}")


def remove(path: Path) -> None:
    """Remove the name ``path``. No error if it does not exist."""
    with as_store_error(path), contextlib.suppress(FileNotFoundError):
        retry(lambda: os.unlink(path))


def touch_directory(directory: Path) -> None:
    """Set the times of ``directory`` to values that it never had. Call this after the last change there.

    A client that lists the directory between two changes with the same time does not notice the second change. It keeps
    showing the older listing until the directory changes again. Clients of NFSv3 compare the time of the last change by
    the server's clock (ctime). No client can set that time, and it advances in ticks, so on NFS this function waits for
    the next tick. On a filesystem whose listings are coherent it does nothing.
    """
    with contextlib.suppress(OSError):
        mount = _mount_of(directory)
        if not mount.coherent:
            _set_mtime(directory)
        if mount.kind in ("nfs", "nfs4"):  # NFSv4 has a change counter, but some servers derive it from the clock
            changed = _ctime_ns(directory)
            for pause in _CLOCK_POLL_DELAYS:
                time.sleep(pause)
                _set_mtime(directory)
                if _ctime_ns(directory) != changed:
                    break


def _set_mtime(directory: Path) -> None:
    """Set the modification time of ``directory`` to now."""
    now = time.time_ns()
    os.utime(directory, ns=(now, now))


def _ctime_ns(directory: Path) -> int:
    return os.stat(directory).st_ctime_ns


@functools.lru_cache(maxsize=256)
def _mount_of(directory: Path) -> Mount:
    return mount_of(directory)


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable, if the filesystem supports that."""
    # A failed sync (EIO) is not repeated: a second sync would report success although the data are lost.
    retry(lambda: _sync_directory(path), final=(errno.EIO,))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def _list_directory(directory: Path) -> list[str]:
    return retry(lambda: os.listdir(directory))


def _mkdir(path: Path) -> None:
    try:
        modes.make_directory(path)
    except FileExistsError:
        if not path.is_dir():
            if exists(path):
                raise
            await_visible(path)  # it exists on the server; this client caches that it was absent
    else:
        touch_directory(path.parent)


def _write_draft(path: Path, data: bytes, *, durable: bool = True, private: bool = False) -> Path:
    """Write a complete file beside ``path``, because some filesystems link only within a directory."""
    # A retry writes the whole draft under a new name: after a failed sync only fresh pages are reliable.
    return retry(lambda: _try_draft(path, data, durable, private))


def _try_draft(path: Path, data: bytes, durable: bool, private: bool) -> Path:
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}.{secrets.token_hex(8)}")
    try:
        fd = modes.create(draft, os.O_WRONLY | os.O_EXCL, private=private)
    except FileExistsError as error:  # created by our request whose reply was lost: the name is random
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
            os.close(fd)  # close, too, may report that the disk is full
    except BaseException:
        _discard(draft)
        raise
    return draft


def _discard(draft: Path) -> None:
    """Try to remove a draft. Errors are ignored: readers skip drafts, and the publication is already decided."""
    with contextlib.suppress(OSError):
        os.unlink(draft)


def _replace(draft: Path, path: Path, data: bytes) -> None:
    failed = False

    def attempt() -> None:
        nonlocal failed
        try:
            os.replace(draft, path)
        except OSError as error:
            # Only this process moves the draft. If it is missing, an earlier request has moved it and its reply was
            # lost; this client may not see the moved file yet. The kernel, too, repeats a request after ESTALE.
            missing = error.errno == errno.ENOENT and exists(path.parent)
            moved = missing and (failed or _await_content(path, data))
            failed = True
            if not moved and not (may_have_succeeded(error) and read(path) == data):
                raise

    retry(attempt)


def _await_content(path: Path, data: bytes) -> bool:
    """Wait until this client sees that ``path`` has the content ``data``. Return False if that takes too long."""
    for pause in poll_delays(NEGATIVE_CACHE_TIMEOUT):
        if read(path) == data:
            return True
        time.sleep(pause)
    return False


def _try_link(draft: Draft) -> LinkResult:
    try:
        os.link(draft.path, draft.target)
    except OSError as error:
        return _try_symlink(draft) if error.errno in _NO_HARD_LINKS else _result_after_error(draft, error)
    return LinkResult.CREATED


def _result_after_error(draft: Draft, error: OSError) -> LinkResult:
    """Return the result of a ``link`` that failed with ``error``; raise ``error`` again if it took no effect."""
    # The listing is read first: if this client opened an absent name, it would cache that the name is absent.
    held = read(draft.target) if draft.target.name in _list_directory(draft.target.parent) else None
    if held is not None:
        return LinkResult.CREATED if held == draft.data else LinkResult.NAME_TAKEN
    links = _link_count(draft.path)
    if links == 0:
        return LinkResult.DRAFT_REMOVED
    if links > 1:
        return LinkResult.CREATED  # the target exists, and this client does not see it yet
    if error.errno != errno.EEXIST:
        draft.link_uncertain = True
        raise error
    if not draft.link_uncertain:
        return LinkResult.NAME_TAKEN
    # The link count may come from a cache. Only the target's content shows which process has created it.
    await_visible(draft.target)
    return LinkResult.CREATED if read(draft.target) == draft.data else LinkResult.NAME_TAKEN


def _link_count(path: Path) -> int:
    """Return the number of names of the file ``path``; 0 if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY)  # open asks the server; stat alone may be answered from a cache
    except OSError as error:
        if error.errno == errno.ENOENT:  # not ESTALE, which is inconclusive until the name is looked up again
            return 0
        raise
    try:
        return os.fstat(fd).st_nlink
    finally:
        os.close(fd)


def _try_symlink(draft: Draft) -> LinkResult:
    draft.is_link_target = True  # from here on the target may become a link to the draft, even after an error
    try:
        os.symlink(draft.path.name, draft.target)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            draft.is_link_target = False
            raise StoreError(f"{draft.target}: {_NO_LINKS_MESSAGE}") from error
        if _symlink_target(draft.target) != draft.path.name:  # else the reply was lost
            if _link_count(draft.path) == 0:
                return LinkResult.DRAFT_REMOVED
            if error.errno == errno.EEXIST:
                draft.is_link_target = False
                return LinkResult.NAME_TAKEN
            raise
    if _link_count(draft.path) > 0:
        return LinkResult.CREATED
    _discard(draft.target)  # dangling: unlike a hard link, a symbolic link can be created after the draft was removed
    return LinkResult.DRAFT_REMOVED


def _symlink_target(path: Path) -> str | None:
    """Return the target of the symbolic link ``path``; None if there is no such link."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise  # a transient error must not be taken for the link of another process
        return None
