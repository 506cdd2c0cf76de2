"""Diagrams of results, by matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import recovery as race
from benchmarks.phases import PHASES
from benchmarks.report import median, significant, spread

_COLOURS = ("#9aa5b1", "#e0a33e", "#c8553d", "#5b8c85", "#3d6b99", "#7b5ea7")
_SIDES = {"hpcelastic": "#3d6b99", "torchrun": "#e0a33e", "ft_launcher": "#8a9a5b"}


def recovery(results: Mapping[str, Any], path: Path) -> None:
    """Write a diagram: left, the phases of hpcelastic, stacked; right, the totals of all launchers, logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hpcelastic"  # the same numbers give the same file
    from matplotlib import pyplot

    scenarios = list(dict.fromkeys(run["scenario"] for run in results["runs"]))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 0.62 * len(scenarios) + 1.9), sharey=True)
    _phases(left, results, scenarios)
    _totals(right, results, scenarios)
    for axes in (left, right):
        axes.legend(fontsize=8, ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, handlelength=1)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _phases(axes: Any, results: Mapping[str, Any], scenarios: list[str]) -> None:
    found = [race.phases(results, scenario) for scenario in scenarios]
    wholes = [sum(one.values()) for one in found]
    begin = [0.0] * len(scenarios)
    for phase, colour in zip(PHASES, _COLOURS, strict=True):
        widths = [100 * one.get(phase, 0.0) / (whole or 1) for one, whole in zip(found, wholes, strict=True)]
        axes.barh(range(len(scenarios)), widths, left=begin, height=0.6, color=colour, label=phase)
        begin = [start + width for start, width in zip(begin, widths, strict=True)]
    for row, whole in enumerate(wholes):
        axes.text(101, row, f"{significant(whole)} s" if whole else "", va="center", fontsize=8)
    axes.set_yticks(range(len(scenarios)), scenarios)
    axes.set_xlim(0, 116)
    axes.invert_yaxis()
    axes.set_xlabel("hpcelastic: share of each phase, %")


def _totals(axes: Any, results: Mapping[str, Any], scenarios: list[str]) -> None:
    names = list(dict.fromkeys(run["side"] for run in results["runs"]))
    timeout, height = results["parameters"]["timeout"], 0.75 / len(names)
    for place, name in enumerate(names):
        seconds = [race.seconds(results, scenario, name) for scenario in scenarios]
        heights = [row + (place - (len(names) - 1) / 2) * height for row in range(len(scenarios))]
        widths = [(median(times) or timeout) if times else 0.0 for times in seconds]
        bars = axes.barh(heights, widths, height, color=_SIDES.get(name, "grey"), label=name)
        for bar, times in zip(bars, seconds, strict=True):
            whole = median(times)
            bar.set_hatch("" if whole else "//")
            bar.set_alpha(1.0 if whole else 0.45)
            text = significant(whole) if whole else spread(times) if times else ""
            axes.text(bar.get_width() * 1.05, bar.get_y() + height / 2, text, va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlim(0.1, timeout * 14)
    axes.set_xlabel("seconds; hatched: not always within the time-out")
