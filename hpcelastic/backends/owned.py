"""Processes that end with the process that has started them, however that ends."""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from hpcelastic.backends import owned_main


def spawn_owned(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start ``command``, a full path and its arguments, with ``options`` of Popen. Raises as Popen does.

    The kernel kills the process when this process ends. A thread starts it and stays as long as it runs, because for
    the kernel the owner of a process is the thread that has started it.
    """
    started: Future[subprocess.Popen[bytes]] = Future()
    threading.Thread(target=_own, args=(started, command, options), name="owner of etcd", daemon=True).start()
    return started.result()


def _own(started: "Future[subprocess.Popen[bytes]]", command: Sequence[str], options: dict[str, Any]) -> None:
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", owned_main.__file__, str(os.getpid()), *command], **options
        )
        pidfd = os.pidfd_open(process.pid)
    except BaseException as error:  # the caller waits for the result
        started.set_exception(error)
        return
    started.set_result(process)
    ended = select.poll()  # select() accepts no descriptor above 1023
    ended.register(pidfd, select.POLLIN)
    ended.poll()
    os.close(pidfd)
