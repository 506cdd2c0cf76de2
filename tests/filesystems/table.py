"""Runs every kind of increment on every filesystem, and writes the table of ``docs/filesystems.md``.

``python -m tests.filesystems.table [INCREMENTS [FILESYSTEM ...]]``: the number of increments of each process, and the
names of filesystems, by default all. Other rows, and those of filesystems that are not available here, stay as they
are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from tests.filesystems.clients import CHECKOUT, MountSet
from tests.filesystems.hammer import KINDS, Observation, hammer
from tests.filesystems.mount_sets import SOURCES, Source, make_folder

PAGE = CHECKOUT / "docs" / "filesystems.md"
BEGIN, END = "<!-- table: begin, by make filesystems -->\n", "<!-- table: end -->\n"

PROCESSES = 2
"""Number of processes on each client."""


def cell(observation: Observation) -> str:
    """Return a short description of the result."""
    made, hung = len(observation.returned), dict(observation.errors).get("hung", 0)
    parts = [
        f"**lost {observation.lost}**" if observation.lost else "",
        f"**{observation.twice} twice**" if observation.twice else "",
        f"{observation.failed - hung} errors" if observation.failed > hung else "",
        f"{hung} hung" if hung else "",
        f"only {made} made" if made < observation.wanted else "",
    ]
    return ", ".join(filter(None, parts)) or "exact"


def row(source: Source, shared: MountSet, increments: int) -> str:
    cells = []
    for place, kind in enumerate(KINDS):
        make_folder(shared, f"table-{place}")
        observation = hammer(kind, shared, f"table-{place}", increments, PROCESSES)
        cells.append(cell(observation))
        print(f"{source.name}: {kind}: {cells[-1]} {dict(observation.errors)} {observation.seconds:.1f} s", flush=True)
    return f"| {source.name} | {' | '.join(cells)} |"


def rows(increments: int, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the row of each available filesystem as soon as it is known."""
    running: dict[str, Mapping[str, MountSet]] = {}
    with ExitStack() as stack:
        for source in sources(names):
            group = source.group
            if reason := group.why_unavailable():
                print(f"{source.name}: left out: {reason}")
                continue
            if group.name not in running:
                running[group.name] = stack.enter_context(group.opened())
            yield source.name, row(source, running[group.name][source.name], increments)


def sources(names: Sequence[str]) -> list[Source]:
    known = {source.name: source for source in SOURCES}
    return [known[name] for name in names or known]


def old_rows(table: str) -> dict[str, str]:
    """Return the present rows of the page, by filesystem."""
    return {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}


def page() -> tuple[str, str, str]:
    """Return the page before, in and after the table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


def main(increments: str = "60", *names: str) -> None:
    known = old_rows(page()[1])
    head = ["filesystem", *KINDS]
    top = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for name, line in rows(int(increments), names):
        known[name] = line
        lines = top + [known[source.name] for source in SOURCES if source.name in known]
        before, _, after = page()
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main(*sys.argv[1:])
