"""Figures as text."""

from datetime import datetime

from hpcelastic.health.verdict import format_duration


def percent(share: float | None) -> str:
    """Format a share as a percentage; None is unknown."""
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Format a duration, with a decimal or in milliseconds if it is short."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)


def date(seconds: float) -> str:
    """Format seconds since the epoch, in the local time zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
