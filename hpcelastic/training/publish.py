"""Atomic publication of files by workers. A worker of an older round never overwrites the files of a newer round."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, overload

from hpcelastic.errors import StoreError
from hpcelastic.storage.errnos import advice, may_have_succeeded, retry
from hpcelastic.storage.files import sync_directory

from .fence import Fence, current_fence

_ADVICE = {
    errno.ENOENT: "create the directory first; if it existed, it was removed",
    errno.EXDEV: "choose a directory whose subdirectories are on the same filesystem",
}
"""Advice that differs from the store's advice, because the user chooses the place of these files."""

_EXCLUDED_ERRORS = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""The errors of a worker's step if its round is excluded. They may have other causes too."""


@overload
def publish(path: str | Path) -> AbstractContextManager[BinaryIO]: ...
@overload
def publish(path: str | Path, *, to: str | Path) -> None: ...
def publish(path: str | Path, *, to: str | Path | None = None) -> AbstractContextManager[BinaryIO] | None:
    """Open a draft for writing, and publish it as ``path`` at the end of the block; with ``to``, publish a link.

    A reader sees the old content or the complete new file. A block that ends with an exception changes nothing. ``to``
    is the text of the symbolic link, relative to the directory of ``path``. Under hpcelastic only the newest round can
    publish: once it has published or called ``claim``, every worker of an older round is refused. Raises ``StoreError``
    in that case, and if the filesystem refuses (no space, no rights, no directory). Outside hpcelastic there is no
    fence.

    Examples:
        A file, atomically:

        >>> with publish("metrics.json") as file:
        ...     size = file.write(b"{}")

        A link, atomically:

        >>> publish("latest.json", to="metrics.json")
        >>> Path("latest.json").read_text()
        '{}'
    """
    if to is None:
        return publication(Path(path), current_fence())
    publish_link(Path(path), Path(to), current_fence())
    return None


def claim(directory: str | Path) -> None:
    """Exclude every older round from ``directory``: its later publications there are refused.

    Call this before you read files that an older round may have published there. Afterwards no such file can appear.
    ``publish`` calls it by itself. Raises ``StoreError`` like ``publish``; does nothing outside hpcelastic.
    """
    if fence := current_fence():
        with _as_store_error("claim", Path(directory), fence, Path(directory)):
            fence.claim(Path(directory))


@contextmanager
def publication(path: Path, fence: Fence | None) -> Iterator[BinaryIO]:
    """Open a draft and publish it as ``path`` at the end of the block, under ``fence`` (None: no fence)."""
    with _as_store_error("write", path, fence, path.parent):
        draft = _draft_path(path, fence)
        with _discard_on_error(draft):
            with open(draft, "x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # before the rename, because a power cut could leave the name without the bytes
            _publish(draft, path)


def publish_link(path: Path, to: Path, fence: Fence | None) -> None:
    """Make ``path`` a symbolic link to ``to``, under ``fence`` (None: no fence)."""
    with _as_store_error("write", path, fence, path.parent):
        draft = _draft_path(path, fence)
        with _discard_on_error(draft):
            os.symlink(to, draft)
            _publish(draft, path)


def publication_error(verb: str, path: Path, error: OSError, fence: Fence | None = None) -> StoreError:
    """Return the error for a filesystem that refuses to ``verb`` the ``path``."""
    what_to_do = _ADVICE.get(error.errno or 0) or advice(error.errno)
    if fence is not None and error.errno in _EXCLUDED_ERRORS:  # this client may not see the exclusion yet
        what_to_do = f"either a newer round than {fence.round} has formed and this worker must stop, or {what_to_do}"
    return StoreError(f"cannot {verb} {path}: {error.strerror or error}; {what_to_do}")


def _draft_path(path: Path, fence: Fence | None) -> Path:
    """Return a unique path for a draft, so that a writer can never rename another writer's incomplete draft."""
    if fence is not None:
        fence.claim(path.parent)
    directory = path.parent if fence is None else fence.drafts(path.parent)
    return directory / f"{path.name}.{secrets.token_hex(4)}.draft"


@contextmanager
def _discard_on_error(draft: Path) -> Iterator[None]:
    """Remove the draft if the block ends with an exception."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _publish(draft: Path, path: Path) -> None:
    draft_stat = os.lstat(draft)
    retry(lambda: _rename(draft, path, draft_stat))
    sync_directory(path.parent)


def _rename(draft: Path, path: Path, draft_stat: os.stat_result) -> None:
    try:
        os.replace(draft, path)  # the atomic step; fence.py explains why it is conditional
    except OSError as error:
        if not may_have_succeeded(error) or not _is_same_file(draft_stat, path):
            raise  # else the reply was lost and a retry found no draft


def _is_same_file(draft_stat: os.stat_result, path: Path) -> bool:
    """Return True if ``path`` is the file of ``draft_stat``, not a later file with the same inode."""
    with suppress(FileNotFoundError):
        path_stat = os.lstat(path)
        same_time = draft_stat.st_mtime_ns == path_stat.st_mtime_ns
        return os.path.samestat(draft_stat, path_stat) and same_time and draft_stat.st_size == path_stat.st_size
    return False


@contextmanager
def _as_store_error(verb: str, path: Path, fence: Fence | None, directory: Path) -> Iterator[None]:
    """Convert an ``OSError`` into a ``StoreError`` with advice; first check whether this worker is a zombie."""
    try:
        yield
    except BaseException as error:
        cause = _os_error(error)
        if cause is None:
            raise
        if fence is not None and cause.errno in _EXCLUDED_ERRORS:
            with suppress(OSError):
                fence.refuse_zombie(directory)
        raise publication_error(verb, path, cause, fence) from error


def _os_error(error: BaseException) -> OSError | None:
    # torch.save raises a RuntimeError about its own offsets while it handles the file's OSError.
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None
