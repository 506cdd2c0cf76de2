"""The store server: a process that serves torch's TCPStore to a round's workers, on a socket from the agent.

``python -m hpcelastic.worker.store_server_main FD`` with FD a listening TCP socket. It serves until it is killed, and
does nothing else. It outlives rank 0, and its port was never free since the agent bound it.
"""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator


def serve(fd: int) -> object:
    """Serve a store on the listening socket ``fd`` as long as the result lives. The store owns ``fd`` from now on."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition

    with socket.socket(fileno=os.dup(fd)) as listener:
        port = listener.getsockname()[1]

    def store(use_libuv: bool) -> object:
        # It is also a client of itself. It waits for no worker, because some workers may never use the store.
        return TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=fd,
            use_libuv=use_libuv,
        )

    with _without_output():
        try:
            return store(use_libuv=True)
        except RuntimeError:  # torch without libuv raises this error before it uses the socket
            return store(use_libuv=False)


@contextlib.contextmanager
def _without_output() -> Iterator[None]:
    """Write no standard error: torch warns that it cannot look up a name, which it must not look up here."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def main() -> None:
    served = serve(int(sys.argv[1]))
    while served:
        signal.pause()


if __name__ == "__main__":
    main()
