"""Whether a node knows its own name, which gloo asks for: it listens at the address that the name stands for."""

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.errors import StoreError
from hpcelastic.store.bounded import bounded

_PATIENCE = 20.0
"""Seconds that a name server may take."""


@dataclass(frozen=True)
class Lookup:
    """What the node's name stands for, and how long it took to find out."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    forward: float = 0.0
    """Seconds."""

    backward: float = 0.0
    """Seconds that the name of the node's address took, whether or not there is one."""

    @property
    def loopback(self) -> bool:
        """True if the name stands for nothing but this machine itself."""
        return bool(self.addresses) and all(ipaddress.ip_address(one).is_loopback for one in self.addresses)


def look_up(name: str, address: str) -> Lookup:
    """Look up the node's own ``name``, and the name of its ``address``."""
    addresses, error, forward = _timed(lambda: sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
    _, _, backward = _timed(lambda: [socket.gethostbyaddr(address)[0]])
    plain = tuple(one.partition("%")[0] for one in addresses)
    return Lookup(name, plain, error, round(forward, 3), round(backward, 3))


def _timed(ask: Callable[[], list[str]]) -> tuple[list[str], str, float]:
    start = time.monotonic()
    try:
        found, error = bounded(ask, _PATIENCE, "name server"), ""
    except OSError as wrong:
        found, error = [], wrong.strerror or str(wrong)
    except StoreError:
        found, error = [], f"no answer within {_PATIENCE:g} s"
    return found, error, time.monotonic() - start
