"""The names of checkpoints, and the rule that decides which of them stay.

Pure. A name has all that the rule needs: the round, the step, and the metric that the checkpoints are compared by. So a
checkpoint and its metric appear and disappear together, in one rename and one removal, and any process can apply the
rule from a listing of the directory.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

_METRIC = r"[^=/]+=-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
"""A quoted name, and a finite number as ``repr`` writes it."""

_PART = r"part-(\d+)-of-(\d+)"
_NAME = re.compile(rf"round-(\d+)\.step-(\d+)(?:\.({_METRIC}))?(?:\.{_PART})?\.pt(\.\w+\.draft)?")


class CheckpointName(NamedTuple):
    """The name of a checkpoint file; sorts by age.

    The checkpoint of a sharded state has a file for each rank. It has the name of the first one.
    """

    round: int
    step: int
    metric: str = ""
    """The name and the value of the metric, such as ``val_loss=0.31``; empty if the checkpoint has none."""

    parts: int = 0
    """The number of files of a sharded state; 0 if the state is not sharded, and has one file."""

    part: int = 0
    """The rank whose part of a sharded state is in the file."""

    def __str__(self) -> str:
        metric = f".{self.metric}" if self.metric else ""
        part = f".part-{self.part:05}-of-{self.parts:05}" if self.parts else ""
        return f"round-{self.round:04}.step-{self.step:08}{metric}{part}.pt"

    @classmethod
    def parse(cls, text: str, *, draft: bool = False) -> "CheckpointName | None":
        found = _NAME.fullmatch(text)
        if found is None or (found[6] is not None) != draft:
            return None
        return cls(int(found[1]), int(found[2]), found[3] or "", int(found[5] or 0), int(found[4] or 0))

    @property
    def checkpoint(self) -> "CheckpointName":
        """The name of the checkpoint that the file belongs to."""
        return self._replace(part=0)

    def files(self) -> list["CheckpointName"]:
        """Return the names of all files of the checkpoint."""
        return [self._replace(part=part) for part in range(self.parts or 1)]

    def value(self, metric: str) -> float | None:
        """Return the value of a metric; None if the checkpoint has another one or none."""
        name, _, value = self.metric.rpartition("=")
        return float(value) if name and name == _quoted(metric) else None


@dataclass(frozen=True)
class Retention:
    """The rule that decides which checkpoints stay."""

    keep: int = 3
    """The number of the newest checkpoints that stay, at least 1."""

    keep_every: int = 0
    """Each checkpoint whose step is a multiple of this number stays; 0 for none."""

    best: str = ""
    """The name of the metric whose best checkpoint stays; empty for none."""

    mode: str = "min"
    """``min`` if the smallest value of the metric is the best, ``max`` if the greatest is."""

    poisoned_round: int = 0
    """Checkpoints of this round and of earlier ones that have more steps than ``poisoned_after`` are poisoned. They all
    stay, as evidence, and beside the others. 0 if there are none."""

    poisoned_after: int = 0

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep is {self.keep}; at least 1 checkpoint must stay")
        if self.keep_every < 0:
            raise ValueError(f"keep_every is {self.keep_every}; it must be 0 or more steps")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; it must be 'min' or 'max'")

    def sparing(self, round: int, step: int) -> "Retention":
        """Return the same rule, which spares what ``round`` and earlier ones have saved after ``step`` steps."""
        return replace(self, poisoned_round=round, poisoned_after=step)

    def metric_of(self, metrics: Mapping[str, float] | None) -> str:
        """Return the metric for the name of a checkpoint. It is empty if the value is NaN or infinite.

        Raises ``ValueError`` if ``metrics`` lacks the one that the best checkpoint is chosen by.
        """
        if not self.best or metrics is None:
            return ""
        if self.best not in metrics:
            raise ValueError(
                f"metrics has no {self.best!r}, by which the best checkpoint is chosen; it has {[*metrics]}"
            )
        value = float(metrics[self.best])
        return f"{_quoted(self.best)}={value!r}" if math.isfinite(value) else ""

    def ranked(self, names: Iterable[CheckpointName]) -> list[CheckpointName]:
        """Return the checkpoints that have the metric, the best first, and the newest first among equals."""
        sign = -1 if self.mode == "max" else 1
        values = [(sign * value, name) for name in names if (value := name.value(self.best)) is not None]
        return [name for _, name in sorted(sorted(values, reverse=True), key=lambda pair: pair[0])]

    def staying(
        self, names: Iterable[CheckpointName], saved: CheckpointName, is_whole: Callable[[CheckpointName], bool]
    ) -> set[CheckpointName]:
        """Return the checkpoints that stay beside ``saved``, which was just published and stays itself.

        A checkpoint that is not whole never is the best. ``is_whole`` is called for the best ones until one is.
        """
        # An earlier save of the same step is replaced, although its name has another metric.
        known = sorted([saved, *(name for name in names if name[:2] != saved[:2])], reverse=True)
        poisoned = {name for name in known if name.round <= self.poisoned_round and name.step > self.poisoned_after}
        known = [name for name in known if name not in poisoned]
        every = {name for name in known if self.keep_every and name.step % self.keep_every == 0}
        best = next((name for name in self.ranked(known) if is_whole(name)), saved)
        return {saved, best, *known[: self.keep], *every, *poisoned}


def _quoted(metric: str) -> str:
    return quote(metric, safe="")
