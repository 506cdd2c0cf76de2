"""Dials into a network in which a firewall rejects with ICMP "port unreachable", and prints what the dialler detects.

It runs in its own network namespace, in which a process is the firewall.
"""

import errno
import select
import socket
import struct
import subprocess

from hpcelastic.network import sockets

_OURS, _THERE = "198.18.0.1", "198.18.0.9"
_IP_HEADER = 20


def _reject(wire: socket.socket, dialler: socket.socket) -> None:
    """Answer the first SYN like iptables' REJECT."""
    while True:
        packet = wire.recv(2048)
        if packet[9] == socket.IPPROTO_TCP and socket.inet_ntoa(packet[16:20]) == _THERE:
            break
    quoted = packet[: _IP_HEADER + 8]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    message = struct.pack("!BBHI", 3, 3, 0, 0) + quoted
    total = sum(struct.unpack(f"!{len(message) // 2}H", message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    raw.sendto(message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:], (_OURS, 0))
    raw.close()


def _outcome(sock: socket.socket) -> tuple[str, bool]:
    select.select([], [sock], [], 10)
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return errno.errorcode.get(error, "none"), sockets.refused_by_kernel(sock)


def main() -> None:
    for line in (
        "link set lo up",
        "link add wire type veth peer name far",
        f"addr add {_OURS}/24 dev wire",
        "link set wire up",
        "link set far up",
        f"neigh add {_THERE} lladdr 02:00:00:00:00:09 dev wire",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    wire.bind(("far", 0))
    rejected, _ = sockets.connect(_THERE, 4242)
    _reject(wire, rejected)
    print(*_outcome(rejected))
    refused, _ = sockets.connect(_OURS, 4242)
    print(*_outcome(refused))


if __name__ == "__main__":
    main()
