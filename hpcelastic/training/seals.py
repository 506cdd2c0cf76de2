"""The seal of a checkpoint: the checksum of all its bytes, as text at its end, in a file and in memory."""

import errno
import os
import re
from pathlib import Path
from typing import BinaryIO

try:
    from isal.isal_zlib import crc32  # several times as fast
except ImportError:  # it has no wheel for this platform
    from zlib import crc32

__all__ = [
    "GONE_ERRORS",
    "SEAL_LENGTH",
    "crc32",
    "find_damage",
    "has_seal",
    "is_whole",
    "seal",
    "seal_memory",
    "seal_text",
]

SEAL_LENGTH = 8
"""Bytes of a seal."""

GONE_ERRORS = (errno.ENOENT, errno.ESTALE)  # NFS reports ESTALE if another client has removed the file


def seal_text(checksum: int) -> bytes:
    """Return the seal for a CRC-32."""
    return f"{checksum:0{SEAL_LENGTH}x}".encode()


def seal_memory(memory: memoryview) -> None:
    """Write the seal to the end of memory. Other threads run meanwhile."""
    memory[-SEAL_LENGTH:] = seal_text(crc32(memory[:-SEAL_LENGTH]))


def is_whole(memory: memoryview) -> bool:
    """Return whether memory with a seal at its end is as it was sealed. Other threads run meanwhile."""
    return seal_text(crc32(memory[:-SEAL_LENGTH])) == memory[-SEAL_LENGTH:]


def seal(draft: BinaryIO) -> None:
    """Write the seal of an archive into its comment.

    torch itself detects a truncated file, but neither zeros within a tensor nor most flipped bits. It does not check
    the archive's checksums of the parts, and these do not cover the archive's directory.
    """
    draft.seek(-2, os.SEEK_END)  # an archive ends with the length of its comment, and torch writes none
    draft.write(SEAL_LENGTH.to_bytes(2, "little"))
    size = draft.tell()
    draft.seek(0)
    draft.write(_seal_of_file(draft, size))


def find_damage(path: Path) -> str | None:
    """Return a description of the file's damage; None if every byte is as it was written."""
    try:
        with path.open("rb") as file:
            seal = _seal_of_file(file, os.fstat(file.fileno()).st_size - SEAL_LENGTH)
            return None if seal and seal == file.read() else "its checksum does not match its content"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return "the disk cannot read it"


def has_seal(path: Path) -> bool:
    """Return False if the file has no seal at its end, because it is truncated, or is gone.

    This is cheap, and does not find other damage. A file that cannot be read now may be whole.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - SEAL_LENGTH))
            return re.fullmatch(rb"[0-9a-f]{%d}" % SEAL_LENGTH, file.read()) is not None
    except OSError as error:
        return error.errno not in GONE_ERRORS


def _seal_of_file(file: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes and return their seal; b"" if there are fewer."""
    checksum = 0
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        checksum = crc32(chunk, checksum)
        size -= len(chunk)
    return b"" if size else seal_text(checksum)
