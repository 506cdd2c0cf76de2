"""Files that appear whole or not at all, whatever is killed and whenever."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hpcelastic.errors import StoreError
from hpcelastic.store.files import sync_directory

_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.EROFS: "choose a directory that you may write to",
    errno.ENOTDIR: "choose a path below a directory, not below a file",
    errno.ENOENT: "make the directory first; if it was there, another process has cleaned up after this one",
}


@contextmanager
def published(path: str | Path) -> Iterator[BinaryIO]:
    """Open a draft beside ``path`` for writing, and make it ``path`` at the end of the block.

    A reader sees the file that was there before or the whole new one; a block left by an exception changes nothing.
    Raises ``StoreError`` if the filesystem refuses (no space, no rights, no directory).
    """
    path = Path(path)
    # A name of its own for each draft: a second writer can then never rename what the first has half written.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with draft.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut may leave the name without the bytes
        draft.replace(path)
        sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if cause := _os_error(error):
            raise cannot("write", path, cause) from error
        raise


def cannot(verb: str, path: Path, error: OSError) -> StoreError:
    """Return the error to raise when the filesystem refuses to ``verb`` the ``path``."""
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "look at the state of that filesystem")
    return StoreError(f"cannot {verb} {path}: {reason}; {remedy}")


def _os_error(error: BaseException) -> OSError | None:
    # torch.save raises a RuntimeError about its own offsets while the file's OSError is on its way up.
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None
