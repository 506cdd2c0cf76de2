"""Other users, for tests that run as root."""

import contextlib
import grp
import json
import os
from collections.abc import Callable
from typing import Any

GROUP = grp.getgrgid(100)
"""A group of every system. Root owns the runs of the tests."""

MEMBER, OUTSIDER = 54321, 54322
"""Users without a name. The first one is in the group."""


def as_user(uid: int, call: Callable[[], Any]) -> Any:
    """Return the JSON of what ``call`` returns in a process of another user, or ``{"error": ...}``."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([GROUP.gr_gid] if uid == MEMBER else [])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            result = call()
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BaseException):
            os.write(writer, json.dumps(result, default=str).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)
