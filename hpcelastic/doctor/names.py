"""Resolution of a node's own host name. gloo needs it: it listens at the address that the name resolves to."""

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.errors import StoreError
from hpcelastic.storage.bounded import bounded

_TIMEOUT = 20.0
"""Seconds for one answer of a name server."""


@dataclass(frozen=True)
class Lookup:
    """The addresses of the node's own name, and the duration of the look-ups."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    forward: float = 0.0
    """Seconds."""

    reverse: float = 0.0
    """Seconds for the look-up of the name of the node's address, whether or not it has one."""

    @property
    def loopback(self) -> bool:
        """True if the name resolves only to loopback addresses."""
        return bool(self.addresses) and all(ipaddress.ip_address(one).is_loopback for one in self.addresses)


def look_up(name: str, address: str) -> Lookup:
    """Look up the node's own ``name``, and the name of its ``address``."""
    addresses, error, forward = _timed(lambda: sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
    _, _, reverse = _timed(lambda: [socket.gethostbyaddr(address)[0]])
    plain = tuple(one.partition("%")[0] for one in addresses)
    return Lookup(name, plain, error, round(forward, 3), round(reverse, 3))


def _timed(query: Callable[[], list[str]]) -> tuple[list[str], str, float]:
    start = time.monotonic()
    try:
        found, error = bounded(query, _TIMEOUT, "name server"), ""
    except OSError as os_error:
        found, error = [], os_error.strerror or str(os_error)
    except UnicodeError as error_of_name:  # of a name that DNS does not allow
        found, error = [], str(error_of_name)
    except StoreError:
        found, error = [], f"no answer within {_TIMEOUT:g} s"
    return found, error, time.monotonic() - start
