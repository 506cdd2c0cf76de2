"""The progress of a training, from the totals that the first nodes of the running round write."""

from dataclasses import dataclass

from hpcelastic.api.figures import duration
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.storage.events import read_logs
from hpcelastic.storage.paths import RunPaths


@dataclass(frozen=True)
class Progress:
    """The progress of a training. It is at most 10 s old while a round runs."""

    step: int
    """Number of steps that are complete, in all rounds."""

    total: int | None
    """Number of steps of the training in all; None if the script does not tell it."""

    rate: float | None
    """Steps per second in the newer half of the round; None if it is unknown."""

    loss: float | None
    """The newest loss; None if the script does not tell it."""

    time: float
    """The time of this progress in seconds since the epoch, by the clock of a node."""

    saved_step: int | None = None
    """Number of steps in the newest state that is saved; None if none was saved in this round."""

    saved: float | None = None
    """When it was saved, in seconds since the epoch, by the clock of a node."""

    @property
    def share(self) -> float | None:
        """The part of the training that is complete; None if it is unknown."""
        return min(1.0, self.step / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at this rate; None if it is unknown."""
        return max(0, self.total - self.step) / self.rate if self.total and self.rate else None

    def __str__(self) -> str:
        of = f" of {self.total:,} ({100 * self.share:.0f} %)" if self.total and self.share is not None else ""
        parts = [f"step {self.step:,}{of}"]
        if self.rate:
            parts.append(f"{self.rate:.3g} steps/s")
        if self.seconds_left:
            parts.append(f"{duration(self.seconds_left)} left")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        return ", ".join(parts)


def read_progress(paths: RunPaths) -> Progress | None:
    """Return the progress of a run; None if it is unknown. Raises StoreError if its files cannot be read."""
    found = [
        (logged.event.round, logged.time, logged.event, logged.up)
        for events in read_logs(paths.training_totals).values()
        for logged in events
        if isinstance(logged.event, TrainingTotals) and logged.event.marked
    ]
    if not found:
        return None
    _, time, newest, _ = max(found, key=lambda each: each[:2])
    ours = [totals for round, _, totals, _ in found if round == newest.round]
    saves = [
        (t.saved_step, at - up + t.saved) for round, at, t, up in found if round == newest.round and t.saved and up
    ]
    saved_step, saved = max(saves, key=lambda each: each[1], default=(None, None))
    step = max((totals.before or 0) + max(0, totals.steps - (totals.done is None)) for totals in ours)
    total = next((totals.total for totals in ours if totals.total), None)
    loss = next((totals.losses[-1][1] for totals in ours if totals.losses), None)
    rate = max((rate for each in ours if (rate := _rate(each))), default=None)
    return Progress(step, total, rate, loss, time, saved_step, saved)


def _rate(totals: TrainingTotals) -> float | None:
    """Return the steps per second since the newest sampled step that is old enough, or since the first step."""
    if totals.first_step is None or totals.last_step is None or totals.steps < 2:
        return None
    number, since = 1, 0.0
    for i, sample in enumerate(totals.samples):
        if 2 << i <= totals.steps * 3 // 4:
            number, since = 2 << i, sample
    seconds = totals.last_step - totals.first_step - since
    return (totals.steps - number) / seconds if seconds > 0 else None
