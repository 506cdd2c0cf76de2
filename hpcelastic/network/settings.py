"""Settings of the network: the interface of a node, whether agents notify each other, and the rate of copies."""

import ipaddress
import re
from dataclasses import dataclass

_NAME = re.compile(r"[^\s/]{1,15}")
"""The interface names that the kernel accepts; source: dev_valid_name in net/core/dev.c."""


@dataclass(frozen=True)
class NetworkSettings:
    """How nodes reach each other."""

    interface: str | None = None
    """The interface at which other nodes reach a node: its name, such as ``ib0``, or its network, such as
    ``10.1.0.0/16``. Detected by default."""

    notifications: bool = True
    """Whether agents notify each other of news over the network. Without it they only poll."""

    snapshot_rate: int = 1024
    """MiB per second, at most, for copies of snapshots to another node; 0 for no limit."""

    def __post_init__(self) -> None:
        if self.interface is not None and not is_network(self.interface) and not _NAME.fullmatch(self.interface):
            raise ValueError(
                f"network.interface is {self.interface!r}; name an interface such as ib0, or a network such as "
                "10.1.0.0/16"
            )
        if self.snapshot_rate < 0:
            raise ValueError(
                f"network.snapshot_rate is {self.snapshot_rate}; write a number of MiB per second, or 0 for no limit"
            )


def is_network(interface: str) -> bool:
    """True if ``interface`` is a network, ``ADDRESS/BITS``, and not the name of an interface."""
    try:
        ipaddress.ip_network(interface, strict=False)
    except ValueError:
        return False
    return "/" in interface
