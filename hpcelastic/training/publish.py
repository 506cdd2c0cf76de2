"""Files that appear whole or not at all, whatever is killed and whenever, and never over those of a newer round."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, overload

from hpcelastic.errors import StoreError
from hpcelastic.store.errnos import advice, doubtful, repeated
from hpcelastic.store.files import sync_directory

from .fence import Fence, this_round

_ADVICE = {
    errno.ENOENT: "make the directory first; if it was there, somebody has removed it",
    errno.EXDEV: "choose a directory whose subdirectories are on the same filesystem",
}
"""What differs from the store's advice: these files are in a place of the user's choice."""

_SHUT_OUT = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""What a step of a worker says whose round has been shut out; other causes may say so too."""


@overload
def publish(path: str | Path) -> AbstractContextManager[BinaryIO]: ...
@overload
def publish(path: str | Path, *, to: str | Path) -> None: ...
def publish(path: str | Path, *, to: str | Path | None = None) -> AbstractContextManager[BinaryIO] | None:
    """Open a draft for writing, and make it ``path`` at the end of the block; with ``to``, make ``path`` a link there.

    A reader sees what was there before or the whole new file; a block left by an exception changes nothing. ``to`` is
    the text of the symbolic link, relative to the directory of ``path``. Under hpcelastic only the newest round
    publishes: once one has, or has called ``claim``, every worker of an older one is refused. Raises ``StoreError``
    then, and if the filesystem refuses (no space, no rights, no directory). Works unfenced outside hpcelastic.

    Examples:
        A file, whole or not at all:

        >>> with publish("metrics.json") as file:
        ...     size = file.write(b"{}")

        A link, moved in one step:

        >>> publish("latest.json", to="metrics.json")
        >>> Path("latest.json").read_text()
        '{}'
    """
    if to is None:
        return publication(Path(path), this_round())
    publish_link(Path(path), Path(to), this_round())
    return None


def claim(directory: str | Path) -> None:
    """Shut every older round out of ``directory``: from now on what it publishes there is refused.

    Call it before you read what an older round may have published there, for then nothing of it comes any more.
    ``publish`` does it by itself. Raises ``StoreError`` as ``publish`` does; does nothing outside hpcelastic.
    """
    if fence := this_round():
        with _explained("claim", Path(directory), fence, Path(directory)):
            fence.claim(Path(directory))


@contextmanager
def publication(path: Path, fence: Fence | None) -> Iterator[BinaryIO]:
    """A draft to write, published as ``path`` at the end of the block, on the side of ``fence``; None: unfenced."""
    with _explained("write", path, fence, path.parent):
        draft = _draft(path, fence)
        with _discarded(draft):
            with open(draft, "x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a power cut may leave the name without the bytes
            _publish(draft, path)


def publish_link(path: Path, to: Path, fence: Fence | None) -> None:
    """Make ``path`` a symbolic link to ``to``, on the side of ``fence``; None: unfenced."""
    with _explained("write", path, fence, path.parent):
        draft = _draft(path, fence)
        with _discarded(draft):
            os.symlink(to, draft)
            _publish(draft, path)


def cannot(verb: str, path: Path, error: OSError, fence: Fence | None = None) -> StoreError:
    """Return the error to raise when the filesystem refuses to ``verb`` the ``path``."""
    what_to_do = _ADVICE.get(error.errno or 0) or advice(error.errno)
    if fence is not None and error.errno in _SHUT_OUT:  # which this client may not see yet
        what_to_do = (
            f"either a newer round than {fence.round} has formed and this worker must not go on, or {what_to_do}"
        )
    return StoreError(f"cannot {verb} {path}: {error.strerror or error}; {what_to_do}")


def _draft(path: Path, fence: Fence | None) -> Path:
    """A name of its own for each draft: a second writer can then never rename what the first has half written."""
    if fence is not None:
        fence.claim(path.parent)
    directory = path.parent if fence is None else fence.drafts(path.parent)
    return directory / f"{path.name}.{secrets.token_hex(4)}.draft"


@contextmanager
def _discarded(draft: Path) -> Iterator[None]:
    """Remove the draft if the block is left by an exception."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _publish(draft: Path, path: Path) -> None:
    ours = os.lstat(draft)
    repeated(lambda: _rename(draft, path, ours))
    sync_directory(path.parent)


def _rename(draft: Path, path: Path, ours: os.stat_result) -> None:
    try:
        os.replace(draft, path)  # the step that counts; see fence.py for what makes it conditional
    except OSError as error:
        if not doubtful(error) or not _same(ours, path):  # a lost reply; repeated, it finds no draft
            raise


def _same(ours: os.stat_result, path: Path) -> bool:
    """True if ``path`` is the file of ``ours``, and not a later one that was given its inode."""
    with suppress(FileNotFoundError):
        there = os.lstat(path)
        return os.path.samestat(ours, there) and (ours.st_mtime_ns, ours.st_size) == (there.st_mtime_ns, there.st_size)
    return False


@contextmanager
def _explained(verb: str, path: Path, fence: Fence | None, directory: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StoreError`` that says what to do; first of all, whether this is a zombie."""
    try:
        yield
    except BaseException as error:
        cause = _os_error(error)
        if cause is None:
            raise
        if fence is not None and cause.errno in _SHUT_OUT:
            with suppress(OSError):
                fence.refuse_zombie(directory)
        raise cannot(verb, path, cause, fence) from error


def _os_error(error: BaseException) -> OSError | None:
    # torch.save raises a RuntimeError about its own offsets while the file's OSError is on its way up.
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None
