"""Makes the pictures of the README, and the output in examples/digits/README.md, from a run of examples/demo.py.

``python docs/make_picture.py`` runs the demo for about a minute, on a machine that does nothing else, and keeps what it
has printed in docs/recovery.json. It draws docs/recovery.svg from that, and Chromium takes docs/report.png, a picture
of the run's report. ``--render`` only draws again from the file. The figure in the picture, the seconds that the loss
of a node costs, must agree with the last benchmark in docs/performance; a test compares them too.
"""

import argparse
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hpcelastic.api.run import Run

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RECORD, PICTURE, BENCHMARK = DOCS / "recovery.json", DOCS / "recovery.svg", DOCS / "performance" / "recovery.json"
REPORT = DOCS / "report.png"
PAGE = ROOT / "examples" / "digits" / "README.md"

COST = re.compile(r"([\d.]+) s after the SIGKILL, the workers of round \d+ had started")
"""The line of the demo that says what the loss of its node cost."""

FACTOR = 2.0
"""The figure of the picture is at most so many times that of the benchmark, and at least that part of it."""

COLORS = {
    "SIGKILL": "bold red",
    "running": "bold cyan",
    "succeeded": "bold green",
    "joining": "yellow",
    "starts": "green",
}


def recorded() -> dict[str, Any]:
    """What a run of the demo prints at its end, and some of what its workers have logged."""
    with tempfile.TemporaryDirectory() as runs:
        done = subprocess.run([sys.executable, ROOT / "examples" / "demo.py", runs], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the demo has failed:\n{done.stdout}{done.stderr}")
        photograph(Path(runs, "demo", "report.html"))
        logged = [line.partition("] ")[2] for line in Run(Path(runs, "demo")).logs(rank=0)]
    first, second = ([line for line in logged if line.startswith(f"round {number},")] for number in (1, 2))
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "happened": done.stdout.partition("What happened:\n")[2].partition("\n\nhpcelastic why")[0].splitlines(),
        "output": [first[-1], *second[:2], "...", logged[-1]],
    }


def photograph(page: Path) -> None:
    """Take the picture of a report, as wide as a page of the documentation."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("the picture of the report needs chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=880,890", f"--screenshot={REPORT}"]
    subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)


def cost(text: str) -> float | None:
    """The seconds that the loss cost, as a picture or a run says; None if it says nothing of it."""
    found = COST.search(text)
    return float(found[1]) if found else None


def measured() -> float:
    """The same in the last benchmark: until the agents have seen the new round, for workers are forked then."""
    runs = json.loads(BENCHMARK.read_text())["results"]["runs"]
    ours = [
        run["phases"] for run in runs if (run["side"], run["scenario"]) == ("hpcelastic", "SIGKILL of the first node")
    ]
    return statistics.median(sum(phases[name] for name in ("detect", "stop", "rendezvous")) for phases in ours)


def agrees(seconds: float | None) -> bool:
    """Whether the figure of a picture is that of the last benchmark, as nearly as two runs are alike."""
    return seconds is not None and measured() / FACTOR <= seconds <= measured() * FACTOR


def picture(record: Mapping[str, Any]) -> str:
    """The picture, an SVG."""
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text("$ make demo", "bold"))
    for line in record["happened"]:
        style = "bold" if COST.match(line) else next((style for word, style in COLORS.items() if word in line), "")
        console.print(Text(line, style, overflow="ellipsis", no_wrap=True))
    return console.export_svg(title="a node dies in mid-training")


def written(page: str, record: Mapping[str, Any]) -> str:
    """``page`` with the output of ``record`` between the comments that mark its place."""
    begin, end = "<!-- output: made by docs/make_picture.py -->\n", "<!-- end of output -->"
    block = "\n".join([f"{begin}```", *record["output"], "```", end])
    page, places = re.subn(f"{begin}.*?{end}", lambda _: block, page, flags=re.DOTALL)
    if places != 1:
        raise ValueError(f"the page has {places} places for the output, not one")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="draw again what docs/recovery.json holds; run nothing")
    record = json.loads(RECORD.read_text()) if parser.parse_args().render else recorded()
    seconds = cost("\n".join(record["happened"]))
    if not agrees(seconds):
        sys.exit(
            f"the loss cost {seconds} s, and {measured():.2f} s in the last benchmark; is the machine idle? Try again"
        )
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PICTURE.write_text(picture(record))
    PAGE.write_text(written(PAGE.read_text(), record))


if __name__ == "__main__":
    main()
