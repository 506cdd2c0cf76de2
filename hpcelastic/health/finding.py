"""What a check of a node has found. Pure: plain values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a node, for a person."""

    check: str
    seen: str
    remedy: str
    bad: bool = True
    """False for a warning: the node can take part."""

    def __str__(self) -> str:
        return f"{self.check}: {self.seen}; {self.remedy}"
