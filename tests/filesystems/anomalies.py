"""Anomalies of a filesystem in the tests, as values that are sent as JSON to its process. Pure."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

NAMES = ("link", "symlink", "rename", "mkdir", "unlink")
"""Operations that change a directory, except the creation of a file."""

CHANGES = (*NAMES, "rmdir", "create", "write", "truncate", "chmod", "chown", "utimens")
"""Operations that a full or read-only filesystem refuses."""

ALL = ("*",)


@dataclass(frozen=True)
class Fault:
    """An error of operations on paths that match ``pattern`` (from the root of the mount)."""

    operations: tuple[str, ...]
    """The operations by their names in FUSE, or `ALL`."""

    error: str = ""
    """Name of the errno of the answer; empty if the operation succeeds."""

    probability: float = 1.0

    done: bool = False
    """Whether the operation is executed before the error, so that only its reply is lost."""

    hang: bool = False
    """Whether the answer waits until the fault is removed or the caller is killed."""

    pattern: str = "*"

    @property
    def number(self) -> int:
        return int(getattr(errno, self.error))

    def meets(self, operation: str, path: str) -> bool:
        return (self.operations == ALL or operation in self.operations) and fnmatchcase(path, self.pattern)


@dataclass(frozen=True)
class Anomalies:
    """All anomalies of one mount. Durations are in seconds; the caches are those of the kernel."""

    entries: float = 0.0
    """Time for which a found name is not looked up again."""

    negative: float = 0.0
    """Time for which a name that was absent stays absent."""

    attributes: float = 0.0
    """Maximum age of size, times and link count."""

    data: float = 0.0
    """Time for which a file that another client has replaced or removed may still be found completely."""

    pages: bool = False
    """Whether the kernel caches data, and reads it again only if the attributes show a change."""

    listings: float = 0.0
    """Maximum age of a listing. The mount's own changes are visible at once."""

    one_directory: bool = False
    """Whether a link to a file must be in the directory of the file; else EXDEV, as on some versions of BeeGFS."""

    faults: tuple[Fault, ...] = ()


def encode(anomalies: Anomalies) -> bytes:
    return json.dumps(asdict(anomalies)).encode()


def decode(data: bytes) -> Anomalies:
    document = json.loads(data)
    faults = (Fault(**{**fault, "operations": tuple(fault["operations"])}) for fault in document.pop("faults"))
    return Anomalies(**document, faults=tuple(faults))
