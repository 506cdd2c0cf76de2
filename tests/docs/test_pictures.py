"""Pictures and recorded output show the latest measurements."""

import html
import json
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recovery
from benchmarks.report import significant

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = "run python docs/make_picture.py on a machine that does nothing else"
BENCHMARK = json.loads((DOCS / "performance" / "recovery.json").read_text())["results"]


@pytest.fixture(scope="module")
def maker() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_picture.py"))


def texts(picture: str) -> str:
    """Return the text of an SVG that rich has drawn, line by line."""
    shown = re.findall(r"<text [^>]*>(.*?)</text>", picture)
    return "\n".join(html.unescape(text).replace("\xa0", " ").rstrip() for text in shown)


def test_the_picture_of_the_demo_shows_the_present_cost_of_a_loss(maker: dict[str, Any]) -> None:
    seconds = maker["cost"](texts((DOCS / "recovery.svg").read_text()))
    assert maker["agrees"](seconds), f"{seconds} s in the picture, {maker['measured']()} s measured: {MADE}"


def test_the_picture_of_the_demo_shows_the_stored_run(maker: dict[str, Any]) -> None:
    record = json.loads((DOCS / "recovery.json").read_text())
    assert texts(maker["picture"](record)) == texts((DOCS / "recovery.svg").read_text()), MADE


def test_the_output_of_digits_is_of_the_same_run(maker: dict[str, Any]) -> None:
    record, page = json.loads((DOCS / "recovery.json").read_text()), (ROOT / "examples/digits/README.md").read_text()
    assert maker["written"](page, record) == page, MADE


@pytest.mark.parametrize(
    ("factor", "agrees"),
    [
        pytest.param(1.0, True, id="as measured"),
        pytest.param(1.9, True, id="a bit more"),
        pytest.param(2.1, False, id="a picture from before it became faster"),
        pytest.param(0.4, False, id="a picture from before it became slower"),
    ],
)
def test_an_outdated_picture_is_found(factor: float, agrees: bool, maker: dict[str, Any]) -> None:
    line = f"{factor * maker['measured']():.4f} s after the SIGKILL, the workers of round 2 had started"
    assert maker["agrees"](maker["cost"](line)) == agrees


def test_a_picture_without_the_cost_is_found(maker: dict[str, Any]) -> None:
    assert not maker["agrees"](maker["cost"]("10.64 s  running   round 2: round 2 formed on 2 nodes"))


def test_the_figure_is_that_of_the_benchmark_without_imports(maker: dict[str, Any]) -> None:
    phases = recovery.phases(BENCHMARK, "SIGKILL of the first node")
    about = sum(phases[name] for name in ("detect", "stop", "rendezvous"))
    assert maker["measured"]() == pytest.approx(about, abs=0.1)


def test_the_picture_of_the_race_shows_every_figure_of_the_benchmark() -> None:
    drawn = (DOCS / "performance" / "recovery.svg").read_text()
    for scenario in dict.fromkeys(run["scenario"] for run in BENCHMARK["runs"]):
        whole = sum(recovery.phases(BENCHMARK, scenario).values())
        for text in (scenario, f"{significant(whole)} s"):
            assert f"<!-- {text} -->" in drawn, "run python -m benchmarks --render recovery"


def test_the_measured_times_of_the_readme_are_those_of_the_benchmark() -> None:
    text = (DOCS.parent / "README.md").read_text()
    found = re.search(
        r"after SIGKILL of a worker, all workers train again in ([\d.]+) s, "
        r"and in ([\d.]+) s with ft_launcher [\d.]+\. "
        r"After SIGKILL of a node, they train again in ([\d.]+) s, and in ([\d.]+) s with torchrun",
        text,
    )
    assert found
    for shown, scenario, side in zip(
        found.groups(),
        ("SIGKILL of a worker", "SIGKILL of a worker", "SIGKILL of the last node", "SIGKILL of the last node"),
        ("hpcelastic", "ft_launcher", "hpcelastic", "torchrun"),
        strict=True,
    ):
        times = [seconds for seconds in recovery.seconds(BENCHMARK, scenario, side) if seconds is not None]
        assert float(shown) == pytest.approx(statistics.median(times), rel=0.05)


def test_the_measured_times_of_the_comparison_are_those_of_the_benchmark() -> None:
    text = (DOCS / "comparison.md").read_text()
    rows = {
        "SIGKILL of a worker: all train again after": "SIGKILL of a worker",
        "SIGKILL of the last node": "SIGKILL of the last node",
        "SIGKILL of the first node": "SIGKILL of the first node",
    }
    for label, scenario in rows.items():
        (row,) = re.findall(rf"^\| {label} \| (.*) \|$", text, re.MULTILINE)
        for shown, side in zip(row.split(" | "), ("hpcelastic", "torchrun", "ft_launcher", "torchft"), strict=False):
            times = [seconds for seconds in recovery.seconds(BENCHMARK, scenario, side) if seconds is not None]
            if shown == "never":
                assert not times
            else:
                assert float(shown.removesuffix(" s")) == pytest.approx(statistics.median(times), rel=0.05)
