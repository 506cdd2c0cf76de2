"""The finding of a node check. Pure: plain values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckFinding:
    """A problem of a node, as text for the administrator."""

    check: str
    seen: str
    remedy: str
    bad: bool = True
    """False for a warning: the node can join nevertheless."""

    of_machine: bool = False
    """Whether the machine is faulty for all jobs, and not by the environment or the settings of this one."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}; {self.remedy}"
