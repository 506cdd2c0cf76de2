"""Detects the address at which other nodes reach this one, without name resolution and without sending packets."""

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
"""An interface name and a socket address with an IPv4 address; source: netdevice(7), struct ifreq on 64 bits."""

_IFCONF = struct.Struct("i4xP")
"""The size and the address of the buffer for the kernel's answer."""

_MAX_ADDRESSES = 1024

_INET6 = Path("/proc/net/if_inet6")

_REMOTE_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""Addresses behind the default route of IPv4 and of IPv6. They are never assigned: RFC 5737 and RFC 3849."""


@dataclass(frozen=True)
class Interface:
    """An address of this machine, with the name of its interface."""

    name: str
    address: str

    @property
    def reachable(self) -> bool:
        """Whether other machines can reach it: it is not a loopback or link-local address."""
        parsed = ipaddress.ip_address(self.address)
        return not parsed.is_loopback and not parsed.is_link_local

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


def own_address(interface: str | None = None, launcher: str = "") -> str:
    """Return the address of this node. Raises ConfigError if there is no such interface.

    The first of these that exists: the address of ``interface``, a name or a network (see `NetworkSettings`); the
    source address towards ``launcher``, a node that can reach this one; the source address of the default route; the
    address of the first interface, for compute nodes that only reach their cluster; the loopback address. IPv4 is
    preferred to IPv6.
    """
    if interface is not None:
        return _address_of(interface)
    return _source_address(launcher) or _default_address()


def explain_address(interface: str | None = None, launcher: str = "") -> tuple[Interface, str]:
    """Return the address that `own_address` selects, with the name of its interface, and the reason."""
    address = own_address(interface, launcher)
    name = interface_of(address) or "?"
    if interface is not None:
        return Interface(name, address), f"as network.interface says, {interface}"
    if launcher and address == _source_address(launcher):
        return Interface(name, address), f"towards {launcher}, where srun runs"
    return Interface(name, address), "by the default route, or the first that other machines can reach"


def interface_of(address: str) -> str:
    """Return the name of the interface that has this address; empty if none has."""
    return next((one.name for one in interfaces() if one.address == address), "")


def _address_of(interface: str) -> str:
    here = interfaces()
    if is_network(interface):
        network = ipaddress.ip_network(interface, strict=False)
        found = [one for one in here if ipaddress.ip_address(one.address) in network]
    else:
        named = [one for one in here if one.name == interface]
        found = [one for one in named if one.reachable] or named
    if not found:
        raise ConfigError(
            f"network.interface is {interface}, and {os.uname().nodename} has no such interface with an address; "
            f"it has {', '.join(map(str, here)) or 'none at all'}"
        )
    return found[0].address


def _default_address() -> str:
    by_route = filter(None, map(_source_address, _REMOTE_ADDRESSES))
    reachable = [one.address for one in interfaces() if one.reachable]
    return min([*by_route, *reachable], key=lambda address: ":" in address, default="127.0.0.1")


def _source_address(address: str) -> str:
    """Return the source address of packets to ``address``; empty if there is no route."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # connecting a UDP socket sends nothing
        ours: str = probe.getsockname()[0]
        return ours if Interface("", ours).reachable else ""
    return ""


def interfaces() -> list[Interface]:
    """Return all addresses of this machine: IPv4 first, in the kernel's order."""
    return [*_inet(), *_inet6()]


def _inet() -> list[Interface]:
    answers = array.array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
    request = _IFCONF.pack(len(answers), answers.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        length = _IFCONF.unpack(fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
    found = (_IFREQ.unpack_from(answers, offset) for offset in range(0, length, _IFREQ.size))
    # An alias, such as eth0:1, belongs to its interface.
    return [Interface(name.rstrip(b"\0").decode().partition(":")[0], socket.inet_ntoa(raw)) for name, raw in found]


def _inet6() -> list[Interface]:
    try:
        lines = _INET6.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]  # address, index, prefix length, scope, flags, name; source: proc(5)
    rows.sort(key=lambda row: int(row[1], 16))
    return [Interface(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows]
