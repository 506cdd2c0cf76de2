"""Causes every fault in a run under SLURM, and writes its cost to the table of ``docs/slurm.md``.

``python -m tests.slurm.scenario.table [CASE ...]``: without CASE all cases. The other rows stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.cluster import SlurmCluster
from tests.slurm.scenario.cases import CASES, Case
from tests.slurm.scenario.judge import Verdict
from tests.slurm.scenario.stage import ROOT, SHAPES, Stage

PAGE = ROOT / "docs" / "slurm.md"
BEGIN, END = "<!-- table: begin, by make scenarios -->\n", "<!-- table: end -->\n"
NODES = 4
HEAD = ["event", *(f"{shape}: {what}" for shape in SHAPES for what in ("standstill", "steps again"))]
HEAD += ["pool: a job's start"]


def cells(verdict: Verdict) -> list[str]:
    """Return the longest standstill, and the number of all steps that were trained again."""
    return [f"{max(cost.seconds for cost in verdict.costs):.1f} s", str(verdict.steps_lost)]


def row(name: str, case: Case) -> str:
    found: list[str] = []
    starts: tuple[float, ...] = ()
    for shape in SHAPES:
        verdict = verdict_on(case, shape) if shape in case.shapes else None
        found += cells(verdict) if verdict else ["", ""]
        starts = verdict.starts if verdict and shape == "pool" else ()
    found.append(f"{max(starts):.1f} s" if starts else "")
    return f"| {' | '.join([name, *found])} |"


def verdict_on(case: Case, shape: str) -> Verdict:
    with SlurmCluster(NODES, extra_conf=case.conf) as cluster, Stage(cluster, case.setting(shape)) as stage:
        case.play(stage)
        return case.end(stage)


def rows(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names or CASES:
        line = row(name, CASES[name])
        print(line, flush=True)
        yield name, line


def page() -> tuple[str, str, str]:
    """Return the page before, in and after the table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


def main(*names: str) -> None:
    known = {line.split("|")[1].strip(): line for line in page()[1].splitlines() if line.startswith("| ")}
    top = [f"| {' | '.join(HEAD)} |", f"| {' | '.join(['---'] * len(HEAD))} |"]
    for name, line in rows(list(names)):
        known[name] = line
        lines = top + [known[case] for case in CASES if case in known]
        before, _, after = page()
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main(*sys.argv[1:])
