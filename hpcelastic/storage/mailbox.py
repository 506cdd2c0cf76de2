"""The mailbox of a shared run: a directory in which the members of a group leave messages for the run's owner.

A message is a file. Its author is the owner of the file. A process of the run's owner takes it by a rename, so exactly
one process gets each message, and writes an answer. The group cannot change or remove the files of others.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.storage import files, modes
from hpcelastic.storage.foreign import read_foreign
from hpcelastic.storage.paths import RunPaths

MAX_SIZE = 4096
"""Maximum size of a message in bytes. A longer one is not read."""

_MOST = 16
"""Maximum number of messages that one call of `take` returns."""

_KEPT = 600.0
"""Seconds for which answers are kept."""

_NAME = re.compile(r"[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Message:
    """A message that was taken."""

    name: str
    uid: int
    """The user who has written it."""

    data: bytes | None
    """Its content; None if it is too long."""


class Mailbox:
    """The mailbox of the run in ``paths``."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    @property
    def exists(self) -> bool:
        return self._paths.mailbox.name in files.names(self._paths.mailbox.parent)

    # For the owner of the run

    def create(self) -> None:
        """Create it in the directory of a shared run."""
        for directory in (self._paths.mailbox, self._paths.taken_requests, self._paths.answers):
            files.make_directory(directory)
        with files.as_store_error(self._paths.mailbox):
            os.chmod(self._paths.mailbox, modes.MAILBOX)

    @property
    def empty(self) -> bool:
        """Whether there is no message. Raises StoreError if the mailbox cannot be read."""
        return not any(map(_NAME.fullmatch, files.names(self._paths.mailbox)))

    def take(self) -> Iterator[Message]:
        """Take messages, at most 16. Raises StoreError if the mailbox cannot be read."""
        count = 0
        for name in sorted(files.names(self._paths.mailbox)):
            if count < _MOST and _NAME.fullmatch(name) and (message := self._take(name)) is not None:
                count += 1
                yield message

    def answer(self, message: Message, data: bytes) -> None:
        """Publish the answer to a message, and remove the message and old answers. Raises StoreError."""
        files.publish(self._answer(message.name), data)
        files.remove(self._paths.taken_requests / message.name)
        with contextlib.suppress(OSError):
            now = os.stat(self._answer(message.name)).st_mtime  # by the clock of the filesystem
            for name in files.names(self._paths.answers):
                if os.stat(self._answer(name)).st_mtime < now - _KEPT:
                    os.unlink(self._answer(name))

    def _take(self, name: str) -> Message | None:
        taken = self._paths.taken_requests / name
        try:
            os.rename(self._paths.mailbox / name, taken)
        except OSError:  # another process has taken it, or it is a directory of another user
            return None
        with contextlib.suppress(OSError):
            read = read_foreign(taken, MAX_SIZE)
            if read is None:
                os.unlink(taken)
            return None if read is None else Message(name, read.uid, read.data)
        return None

    # For a member of the group

    def put(self, data: bytes) -> str:
        """Leave a message, and return its name. Raises StoreError."""
        name = f"{secrets.token_hex(8)}.json"
        files.publish(self._paths.mailbox / name, data)
        return name

    def answer_to(self, name: str) -> bytes | None:
        """Return the answer to a message; None if there is none yet. Raises StoreError."""
        return files.read(self._answer(name)) if name in files.names(self._paths.answers) else None

    def withdraw(self, name: str) -> bool:
        """Remove a message of this user. Return whether it had not been taken. Raises StoreError."""
        path = self._paths.mailbox / name
        with files.as_store_error(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return False
        return True

    def _answer(self, name: str) -> Path:
        return self._paths.answers / name
