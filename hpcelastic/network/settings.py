"""Settings of the network: the interface of a node, its ports, whether agents notify each other, the rate of copies."""

import ipaddress
import re
from dataclasses import dataclass

_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")
_LAST_PORT = 65535
_FEWEST_PORTS = 2
"""An agent listens at one port, and its node at another one for the store of the workers."""

_NAME = re.compile(r"[^\s/]{1,15}")
"""The interface names that the kernel accepts; source: dev_valid_name in net/core/dev.c."""


@dataclass(frozen=True)
class NetworkSettings:
    """How nodes reach each other."""

    interface: str | None = None
    """The interface at which other nodes reach a node: its name, such as ``ib0``, or its network, such as
    ``10.1.0.0/16``. Detected by default."""

    ports: str | None = None
    """The ports at which agents and the stores of the workers listen, such as ``29500-29600``. Each node needs two of
    them. By default the kernel chooses free ports."""

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
        if self.ports is not None and not _is_range(self.ports):
            raise ValueError(
                f"network.ports is {self.ports!r}; write the first and the last port, at least {_FEWEST_PORTS} in all, "
                "such as 29500-29600"
            )
        if self.snapshot_rate < 0:
            raise ValueError(
                f"network.snapshot_rate is {self.snapshot_rate}; write a number of MiB per second, or 0 for no limit"
            )

    @property
    def port_range(self) -> range:
        """The ports to listen at. Empty if any port will do."""
        match = _PORTS.fullmatch(self.ports or "")
        return range(int(match[1]), int(match[2]) + 1) if match else range(0)


def _is_range(ports: str) -> bool:
    match = _PORTS.fullmatch(ports)
    return match is not None and int(match[1]) > 0 and int(match[1]) + _FEWEST_PORTS - 1 <= int(match[2]) <= _LAST_PORT


def is_network(interface: str) -> bool:
    """True if ``interface`` is a network, ``ADDRESS/BITS``, and not the name of an interface."""
    try:
        ipaddress.ip_network(interface, strict=False)
    except ValueError:
        return False
    return "/" in interface
