"""InfiniBand ports of a node while its workers train.

Source: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

from collections.abc import Iterator
from pathlib import Path

from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity

_CHECK = "InfiniBand"
_ACTIVE = "ACTIVE"

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
            self._counters[port] = now


def _state(port: Path) -> str:
    """Return the state of a port, such as ``ACTIVE`` or ``DOWN``; empty if it cannot be read."""
    return _read(port / "state").rpartition(":")[2].strip()


def _counters(port: Path) -> dict[str, int]:
    values = {name: _read(port / "counters" / name) for name in _LIMITS}
    return {name: int(value) for name, value in values.items() if value.isdecimal()}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
