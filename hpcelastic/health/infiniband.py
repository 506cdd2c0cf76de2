"""InfiniBand ports of a node while its workers train.

Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity

_CHECK = "InfiniBand"
_ACTIVE = "ACTIVE"
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
"""Errors of this process and of the node, which tell nothing about a port."""

_LIMITS = {"link_downed": 1, "link_error_recovery": 1, "port_rcv_errors": 1000, "symbol_error": 1000}
"""Error counters, and the increase between two looks from which it is a finding."""


class InfiniBandPorts:
    """The ports that are active at first. Each is reported once until it is well again."""

    def __init__(self, root: Path = Path("/sys/class/infiniband")) -> None:
        ports = sorted(root.glob("*/ports/*"))
        self._counters = {port: _counters(port) for port in ports if _state(port) == _ACTIVE}
        self._down: set[Path] = set()

    def look(self) -> Iterator[HardwareFinding]:
        """Yield ports that are not active any more, and error counters that have grown."""
        for port, before in self._counters.items():
            name, state = f"{port.parent.parent.name} port {port.name}", _state(port)
            if state is None:
                continue
            if state == _ACTIVE:
                self._down.discard(port)
            elif port not in self._down:
                self._down.add(port)
                seen = f"{name} is {state or 'gone'}"
                yield HardwareFinding(_CHECK, seen, HardwareSeverity.LEAVE_AT_STEP)
            now = _counters(port)
            grown = {key: now[key] - before[key] for key in now.keys() & before.keys()}
            bad = [f"{key} by {grown[key]}" for key, limit in _LIMITS.items() if grown.get(key, 0) >= limit]
            if bad:
                yield HardwareFinding(
                    _CHECK, f"error counters of {name} have grown: {', '.join(bad)}", HardwareSeverity.NOTE
                )
            self._counters[port] = {**before, **now}


def _state(port: Path) -> str | None:
    """Return the state of a port, such as ``ACTIVE`` or ``DOWN``; empty if the port is gone or its adapter is dead.

    The kernel asks the adapter. Return None if a lack of memory or of file descriptors prevents that.
    """
    try:
        return (port / "state").read_text().rpartition(":")[2].strip()
    except OSError as error:
        return None if error.errno in _SHORTAGES else ""


def _counters(port: Path) -> dict[str, int]:
    """Return the error counters of a port, without those that cannot be read."""
    found = {}
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found[name] = int((port / "counters" / name).read_text())
    return found
