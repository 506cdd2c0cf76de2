"""Two network namespaces with a cable between them. They end with the process that holds them."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from functools import cache

from tests.cluster.availability import why_missing

_PROGRAMS = ("ip", "unshare", "nsenter")
_HOLD = "ip link set lo up && echo ready && read -r _"


@cache
def why_no_namespaces() -> str | None:
    """Return None if they can be made here, else the reason and the remedy."""
    if os.geteuid() != 0:  # first, because only root is sure to have /usr/sbin in PATH
        return "network namespaces need root: run pytest as root"
    if reason := why_missing(*_PROGRAMS):
        return reason
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        capture_output=True,
        text=True,
    )
    return f"no network namespace ({probe.stderr.strip()}): in a container, run it privileged" if probe.stderr else None


class Machine:
    """A network namespace, which has an address once it is connected."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "sh", "-c", _HOLD]  # ends with our process, also if it is killed
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._holder.pid
        self.inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "ready\n"

    def ip(self, words: str) -> None:
        subprocess.run([*self.inside, "ip", *words.split()], check=True)

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Cable:
    """Connects two machines, 198.18.0.1 and 198.18.0.2: addresses reserved for tests of networks (RFC 2544)."""

    def __init__(self, one: Machine, other: Machine) -> None:
        self._ends = (one, other)
        self.addresses = ("198.18.0.1", "198.18.0.2")
        one.ip(f"link add eth0 type veth peer name eth0 netns {other.pid}")
        for machine, address in zip(self._ends, self.addresses, strict=True):
            machine.ip(f"addr add {address}/24 dev eth0")
            machine.ip("link set eth0 up")

    def cut(self) -> None:
        """For the first machine, the interface is down. For the second one, nothing arrives."""
        self._ends[0].ip("link set eth0 down")

    def heal(self) -> None:
        self._ends[0].ip("link set eth0 up")


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine, Cable]]:
    with contextlib.ExitStack() as stack:
        one, other = Machine(), Machine()
        stack.callback(one.close)
        stack.callback(other.close)
        yield one, other, Cable(one, other)
