"""The free space of the filesystems that checkpoints are written to, and when it will be used up.

`SpaceForecast` is pure: it is fed with times and free bytes. `FreeSpace` reads the filesystem, and reports to people.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SPACING = 60.0
"""Seconds between the observations that count, so that a forecast is not made of a few seconds."""

_MIN_OBSERVATIONS = 6
_MAX_OBSERVATIONS = 12
_HORIZON = 24 * 3600.0
"""Seconds. A filesystem that lasts longer is not reported."""

_REPORT_INTERVAL = 3600.0


@dataclass(frozen=True)
class SpaceForecast:
    """The free space of one filesystem after each of the last saves."""

    observations: tuple[tuple[float, int], ...] = ()
    """Times in seconds, ascending, and free bytes."""

    def after(self, now: float, free: int) -> "SpaceForecast":
        """Return the forecast with one more observation, if it is not too close to the last one."""
        if self.observations and now - self.observations[-1][0] < _SPACING:
            return self
        return SpaceForecast((*self.observations, (now, free))[-_MAX_OBSERVATIONS:])

    def seconds_left(self) -> float | None:
        """Return the seconds from the last observation until no space is free.

        Return None if the space does not shrink, or if there are too few observations. The space must shrink over all
        observations and over the later half of them: the first checkpoints of a run take space until the oldest are
        removed.
        """
        count = len(self.observations)
        if count < _MIN_OBSERVATIONS:
            return None
        rate = min(_shrinking(self.observations), _shrinking(self.observations[count // 2 :]))
        return self.observations[-1][1] / rate if rate > 0 else None


def _shrinking(observations: tuple[tuple[float, int], ...]) -> float:
    """Return the bytes by which the free space shrinks in a second: the slope of the line of least squares."""
    import statistics  # here, because agents of runs without checkpoints do not need it

    times, free = zip(*observations, strict=True)
    return -statistics.linear_regression(times, free).slope


class FreeSpace:
    """Watches the filesystems of directories. ``report`` is called with lines for people."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._forecasts: dict[str, SpaceForecast] = {}
        self._reported: dict[str, float] = {}
        """When a directory was last reported."""

    def before_save(self, directory: str, step: int, size: int) -> None:
        """Report that a checkpoint of ``size`` bytes is larger than the free space."""
        free = free_bytes(directory)
        if free is not None and size > free:
            self._report(
                f"{directory}: the checkpoint of step {step} has {_format_size(size)}, and only {_format_size(free)} "
                "are free; it is tried nevertheless"
            )

    def after_save(self, directory: str) -> None:
        """Observe the free space. Report, at most once an hour, that it will be used up within a day."""
        free, now = free_bytes(directory), time.monotonic()
        if free is None:
            return
        forecast = self._forecasts[directory] = self._forecasts.get(directory, SpaceForecast()).after(now, free)
        left = forecast.seconds_left()
        due = now - self._reported.get(directory, -_REPORT_INTERVAL) >= _REPORT_INTERVAL
        if left is not None and left < _HORIZON and due:
            self._reported[directory] = now
            self._report(
                f"{directory}: {_format_size(free)} are free, full in about {_format_hours(left)} at the present rate"
            )


def free_bytes(directory: str) -> int | None:
    """Return the bytes that are free for users; None if the directory, or its parent, cannot be examined.

    The directory may not exist before the first save.
    """
    for path in (Path(directory), Path(directory).parent):
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None


def _format_size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"
