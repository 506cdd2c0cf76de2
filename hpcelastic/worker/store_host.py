"""The store host: a process that serves torch's TCPStore to a round's workers, on a socket that it is handed.

``python -m hpcelastic.worker.store_host FD`` with FD a TCP socket that listens. It serves until it is killed, and does
nothing else: it outlives rank 0, and its port was never free since the agent bound it.
"""

import os
import signal
import socket
import sys


def serve(fd: int) -> object:
    """Serve a store on the listening socket ``fd``, which the store owns from now on, as long as the result lives."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition

    with socket.socket(fileno=os.dup(fd)) as listener:
        port = listener.getsockname()[1]

    def store(use_libuv: bool) -> object:
        # Also a client of itself; it waits for nobody, for who has no need of the store never comes.
        return TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=fd,
            use_libuv=use_libuv,
        )

    try:
        return store(use_libuv=True)
    except RuntimeError:  # a torch that was built without libuv says so before it touches the socket
        return store(use_libuv=False)


def main() -> None:
    served = serve(int(sys.argv[1]))
    while served:
        signal.pause()


if __name__ == "__main__":
    main()
