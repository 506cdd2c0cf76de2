"""Draws docs/recovery.svg: what `make demo` has just shown. ``python docs/make_picture.py runs/demo``"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hpcelastic.api.run import Run
from hpcelastic.api.timeline import timeline

COLORS = {
    "running": "bold cyan",
    "succeeded": "bold green",
    "joining": "yellow",
    "starts": "green",
    "ended with": "red",
}


def main() -> None:
    run = Run(sys.argv[1])
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(Text("$ make demo", "bold"))
    for line in timeline(run):
        line = re.sub(r"(failed on \w+): .*", r"\1: connection lost", line)
        style = next((style for word, style in COLORS.items() if word in line), "")
        console.print(Text(line, style, overflow="ellipsis", no_wrap=True))
    Path(__file__).with_name("recovery.svg").write_text(console.export_svg(title="a node dies in mid-training"))


if __name__ == "__main__":
    main()
