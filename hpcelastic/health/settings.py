"""Settings of the node check and of the exclusion of bad nodes. Pure: plain values."""

import math
import re
from dataclasses import dataclass

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)


@dataclass(frozen=True)
class HealthSettings:
    """The checks that a node must pass before it joins, and the exclusion of nodes by their incidents."""

    check: bool = True
    """Check a node before it joins: its GPUs, free space, the run's directory, and ``command``."""

    exclude: bool = True
    """Exclude nodes with recent incidents: they do not join, and the next submission excludes them."""

    disk: str = "64M"
    """Free space that a node must have in ``TMPDIR``, such as 20G; 0 for no check."""

    shared_memory: str = "32M"
    """Free space that a node must have in ``/dev/shm``, where workers of one node exchange data; 0 for no check."""

    command: str | None = None
    """Your own check, run by a shell on each node; an exit status other than 0 means that the node is bad."""

    timeout: float = 30.0
    """Seconds after which a check that has not ended, including ``command``, means that the node is bad."""

    benchmark: bool = False
    """Measure the nodes of an allocation, and the connections between them, before they join: up to a minute. Slow
    nodes do not join, if the others are enough for ``nodes.min``."""

    watch_interval: float = 15.0
    """Seconds between two looks at the hardware while the workers train; 0 for none."""

    half_life: float = 3600.0
    """Seconds after which the weight of an incident has halved."""

    shared_record: str | None = None
    """Directory in which the runs of several users record nodes with faulty hardware. Nodes that other runs have
    recorded are excluded too."""

    def __post_init__(self) -> None:
        for name in ("disk", "shared_memory"):
            if not _SIZE.fullmatch(getattr(self, name)):
                raise ValueError(
                    f"health.{name} is {getattr(self, name)!r}; write a number and a unit, such as 20G, or 0"
                )
        for name in ("timeout", "half_life"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"health.{name} is {getattr(self, name)}; it must be a number of seconds, more than 0")
        if not (math.isfinite(self.watch_interval) and self.watch_interval >= 0):
            raise ValueError(f"health.watch_interval is {self.watch_interval}; it must be 0 seconds or more")
        if self.shared_record is not None and not self.shared_record.startswith("/"):
            raise ValueError(f"health.shared_record is {self.shared_record!r}; write an absolute path")
        if self.command is not None and not self.command.strip():
            raise ValueError("health.command is empty; write a command, or omit the key")


def size(text: str) -> int:
    """Return the number of bytes of a size such as ``20G``; units are powers of 1,024."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write a number and a unit, such as 20G")
    return int(match[1]) << _UNITS[match[2].upper()]
