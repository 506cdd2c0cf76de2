"""The address at which other nodes reach this one. No name is looked up, and no packet is sent."""

import array
import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import ConfigError
from hpcelastic.network.settings import is_network

_SIOCGIFCONF = 0x8912
"""Get the IPv4 addresses of all interfaces; source: netdevice(7), <linux/sockios.h>."""

_IFREQ = struct.Struct("16s4x4s16x")
"""A name and, within a socket address, an IPv4 address; source: netdevice(7), struct ifreq on 64 bits."""

_IFCONF = struct.Struct("i4xP")
"""How long the kernel's answer may be, and where it is to be written."""

_MAX_ADDRESSES = 1024

_INET6 = Path("/proc/net/if_inet6")

_ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses behind the default route, IPv4's and IPv6's: RFC 5737 and RFC 3849, never assigned."""


@dataclass(frozen=True)
class Interface:
    """An address of this machine."""

    name: str
    address: str

    @property
    def far(self) -> bool:
        """Whether other machines can know it."""
        parsed = ipaddress.ip_address(self.address)
        return not parsed.is_loopback and not parsed.is_link_local

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


def own_address(interface: str | None = None, launcher: str = "") -> str:
    """The address of ``interface``, given by name or by its network (see `NetworkSettings`), if given.

    Else the source address towards ``launcher``, a node that can reach this one, if given; else that of the default
    route; where there is none, as on compute nodes that see their cluster only, that of the first interface that
    has one, IPv4 before IPv6; else the loopback address. Raises ConfigError if there is no such interface.
    """
    if interface is not None:
        return _given(interface)
    return _towards(launcher) or _by_default()


def explained(interface: str | None = None, launcher: str = "") -> tuple[Interface, str]:
    """What `own_address` chooses, with the name of its interface, and why."""
    address = own_address(interface, launcher)
    name = interface_of(address) or "?"
    if interface is not None:
        return Interface(name, address), f"as network.interface says, {interface}"
    if launcher and address == _towards(launcher):
        return Interface(name, address), f"towards {launcher}, where srun runs"
    return Interface(name, address), "by the default route, or the first that others can know"


def interface_of(address: str) -> str:
    """The name of the interface that has this address; empty if none has."""
    return next((one.name for one in interfaces() if one.address == address), "")


def _given(interface: str) -> str:
    here = interfaces()
    if is_network(interface):
        network = ipaddress.ip_network(interface, strict=False)
        found = [one for one in here if ipaddress.ip_address(one.address) in network]
    else:
        named = [one for one in here if one.name == interface]
        found = [one for one in named if one.far] or named
    if not found:
        raise ConfigError(
            f"network.interface is {interface}, and {os.uname().nodename} has no such interface with an address; "
            f"it has {', '.join(map(str, here)) or 'none at all'}"
        )
    return found[0].address


def _by_default() -> str:
    by_route = filter(None, map(_towards, _ANYWHERE))
    far = [one.address for one in interfaces() if one.far]
    return min([*by_route, *far], key=lambda address: ":" in address, default="127.0.0.1")


def _towards(address: str) -> str:
    """The address of ours from which a packet to ``address`` would go; empty if none would."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # connecting a UDP socket sends nothing
        ours: str = probe.getsockname()[0]
        return ours if Interface("", ours).far else ""
    return ""


def interfaces() -> list[Interface]:
    """All addresses of this machine: first IPv4, each in the kernel's order."""
    return [*_inet(), *_inet6()]


def _inet() -> list[Interface]:
    answers = array.array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
    request = _IFCONF.pack(len(answers), answers.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        length = _IFCONF.unpack(fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
    found = (_IFREQ.unpack_from(answers, offset) for offset in range(0, length, _IFREQ.size))
    # An alias, such as eth0:1, is its interface's.
    return [Interface(name.rstrip(b"\0").decode().partition(":")[0], socket.inet_ntoa(raw)) for name, raw in found]


def _inet6() -> list[Interface]:
    try:
        lines = _INET6.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]  # address, index, prefix length, scope, flags, name; source: proc(5)
    rows.sort(key=lambda row: int(row[1], 16))
    return [Interface(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows]
