"""A switch in its own network namespace, with a cable to every host and one to this machine.

The kernel removes the bridge and every cable when the last process of the namespace, the switch, ends. Frames between
hosts do not pass this machine's network namespace, so its firewall rules (Docker's drop forwarded frames) do not apply.
"""

from __future__ import annotations

import ipaddress
import random
import subprocess
from contextlib import suppress

from tests.cluster.errors import ClusterError

# 198.18.0.0/15 is reserved for tests of networks (RFC 2544), so it hides no real network. fd00::/8 is for local
# networks (RFC 4193).
_SUBNETS = [f"198.{18 + index // 256}.{index % 256}." for index in range(512)]
_SUBNETS_6 = [f"fd00:198:18:{index:x}::" for index in range(512)]

# Standard input ends with the process that started the switch, even if that process was killed.
_SWITCH = """
ip link add bridge0 type bridge && ip link set bridge0 up && echo ready
read -r _
[ -z "$1" ] || for _ in 1 2 3 4 5; do rm -rf "$1" && break; sleep 0.2; done
"""


def ip(*batches: str) -> None:
    """Run lines of `ip -batch` in this machine's network namespace."""
    _batch([], batches)


def _batch(prefix: list[str], lines: tuple[str, ...]) -> None:
    command = [*prefix, "ip", "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", text=True, capture_output=True)
    if done.returncode:
        raise ClusterError(f"ip failed: {done.stderr.strip()}; the commands were {list(lines)}")


def prefix(address: str) -> int:
    """Return the length of the prefix that the hosts of a switch share."""
    return 64 if ":" in address else 24


class Switch:
    """A switch that exists as long as its process. It removes the directory `scratch` if its creator is killed.

    Its network has addresses of IPv4, or else of IPv6.
    """

    def __init__(self, scratch: str = "", *, ipv6: bool = False) -> None:
        self._subnets = _SUBNETS_6 if ipv6 else _SUBNETS
        command = ["unshare", "--net", "bash", "-c", _SWITCH, "switch", scratch]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            if not self._process.stdout or self._process.stdout.readline() != "ready\n":
                raise ClusterError("the switch did not start: no network namespace or no bridge")
            self.uplink, self.subnet = self._plug_uplink()
        except BaseException:
            self.close()
            raise

    @property
    def gateway(self) -> str:
        """The address of this machine on the switch."""
        return self.address(254)

    def address(self, number: int) -> str:
        """Return the address of a host on the switch."""
        return f"{self.subnet}{number}"

    def _plug_uplink(self) -> tuple[str, str]:
        """Take the first free name in random order. The name determines the subnet, and a name exists only once."""
        for index in random.sample(range(len(_SUBNETS)), len(_SUBNETS)):
            uplink = f"slurmtest{index}"
            try:
                ip(f"link add {uplink} type veth peer name uplink netns {self._process.pid}")
            except ClusterError as error:
                if "exists" not in str(error):
                    raise
                continue
            subnet = self._subnets[index]
            unique = " nodad" if ":" in subnet else ""  # needs no test for duplicates
            ip(f"addr add {subnet}254/{prefix(subnet)} dev {uplink}{unique}", f"link set {uplink} up")
            self._ip("link set uplink master bridge0 up")
            return uplink, subnet
        raise ClusterError("no free subnet for a test cluster: every slurmtest* link name is taken")

    @property
    def inside(self) -> list[str]:
        """Return the command prefix that runs a command in the switch's network namespace."""
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net"]

    def _ip(self, *lines: str) -> None:
        _batch(self.inside, lines)

    def plug(self, port: str, address: str, pid: int) -> None:
        """Connect a port to `eth0` with that IP address in the network namespace of a process."""
        # The hardware address never changes. Peers remember it, and would not find a host that returns with another.
        hardware = "02:00:" + ipaddress.ip_address(address).packed[-4:].hex(":")
        peer = f"peer name eth0 address {hardware} netns {pid}"
        self._ip(f"link add {port} type veth {peer}", f"link set {port} master bridge0 up")

    def tap(self, port: str) -> None:
        """Make a port for a virtual machine that runs `inside`."""
        self._ip(f"tuntap add {port} mode tap", f"link set {port} master bridge0 up")

    def unplug(self, port: str) -> None:
        """Remove the cable if there is one."""
        with suppress(ClusterError):
            self._ip(f"link del {port}")

    def cut(self, port: str) -> None:
        self._ip(f"link set {port} down")

    def heal(self, port: str) -> None:
        self._ip(f"link set {port} up")

    def detach(self, port: str) -> None:
        """Drop all frames while the link stays up: a virtual machine does not recover from a `tap` that went down."""
        self._ip(f"link set {port} nomaster")

    def attach(self, port: str) -> None:
        self._ip(f"link set {port} master bridge0")

    def close(self) -> None:
        if hasattr(self, "uplink"):
            with suppress(ClusterError):
                ip(f"link del {self.uplink}")
        self._process.kill()
        self._process.communicate()
