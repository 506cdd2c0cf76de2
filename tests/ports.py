"""Ports for the servers of tests."""

import socket


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
