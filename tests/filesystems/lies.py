"""Pure: what a filesystem in the tests lies about, as values that travel as JSON to the process that tells the lies."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

NAMES = ("link", "symlink", "rename", "mkdir", "unlink")
"""Operations that change a directory, but for the creation of a file."""

CHANGES = (*NAMES, "rmdir", "create", "write", "truncate", "chmod", "chown", "utimens")
"""Operations that a full or read-only filesystem refuses."""

ALL = ("*",)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in operations, of those on paths that match ``pattern`` (from the mount's root)."""

    operations: tuple[str, ...]
    """By the names that FUSE gives them, or `ALL`."""

    error: str = ""
    """Name of the errno that is answered; none: the operation goes on."""

    probability: float = 1.0

    done: bool = False
    """The operation is carried out first: its reply is lost."""

    hang: bool = False
    """The answer waits until the fault is taken away, or the caller is killed."""

    pattern: str = "*"

    @property
    def number(self) -> int:
        return int(getattr(errno, self.error))

    def meets(self, operation: str, path: str) -> bool:
        return (self.operations == ALL or operation in self.operations) and fnmatchcase(path, self.pattern)


@dataclass(frozen=True)
class Lies:
    """All that one mount lies about. Seconds throughout; the caches are the kernel's own."""

    entries: float = 0.0
    """A name that was found is not looked up again for so long."""

    negative: float = 0.0
    """A name that was absent stays absent for so long."""

    attributes: float = 0.0
    """Size, times and link count may be so old."""

    data: float = 0.0
    """A file that another client has replaced or removed may be found, whole, for so long after it was looked at."""

    pages: bool = False
    """Data that was read is kept by the kernel, and not read again unless the attributes show a change."""

    listings: float = 0.0
    """A listing may be so old; what this mount itself has changed shows at once."""

    faults: tuple[Fault, ...] = ()


def encode(lies: Lies) -> bytes:
    return json.dumps(asdict(lies)).encode()


def decode(data: bytes) -> Lies:
    document = json.loads(data)
    faults = (Fault(**{**fault, "operations": tuple(fault["operations"])}) for fault in document.pop("faults"))
    return Lies(**document, faults=tuple(faults))
