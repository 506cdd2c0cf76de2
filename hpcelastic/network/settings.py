"""Settings of the network: which interface a node is reached at, and whether agents ring each other."""

import ipaddress
import re
from dataclasses import dataclass

_NAME = re.compile(r"[^\s/]{1,15}")
"""What the kernel takes as a name of an interface; source: dev_valid_name in net/core/dev.c."""


@dataclass(frozen=True)
class NetworkSettings:
    """How nodes reach each other."""

    interface: str | None = None
    """The interface at which others reach a node, by name such as ``ib0``, or by its network such as ``10.1.0.0/16``;
    found out where not given."""

    doorbell: bool = True
    """Whether agents ring each other over the network when there is something new; without it they only look."""

    def __post_init__(self) -> None:
        if self.interface is not None and not is_network(self.interface) and not _NAME.fullmatch(self.interface):
            raise ValueError(
                f"network.interface is {self.interface!r}; name an interface such as ib0, or a network such as "
                "10.1.0.0/16"
            )


def is_network(interface: str) -> bool:
    """Whether ``interface`` is a network, ``ADDRESS/BITS``, and not the name of an interface."""
    try:
        ipaddress.ip_network(interface, strict=False)
    except ValueError:
        return False
    return "/" in interface
