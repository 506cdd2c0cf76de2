"""The finders of mutants: tables of cases, the simulator, and test files that run on a copy of the code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants.tables import failing_row
from tests.protocol.under_test import (
    ASSIGNMENT,
    BUDGET,
    DECIDE,
    EXAMINATION,
    GROUPS,
    HANGS,
    NODE,
    RANKING,
    ROLLBACK,
    STRAGGLERS,
    Patch,
    load,
)
from tests.simulation.faults import PROFILES, scenario
from tests.simulation.shrink import violation_of

TABLES = {
    DECIDE: "tests.protocol.test_decide",
    ASSIGNMENT: "tests.protocol.test_decide",
    RANKING: "tests.protocol.test_ranking",
    GROUPS: "tests.protocol.test_groups",
    NODE: "tests.protocol.test_node",
    BUDGET: "tests.protocol.test_budget",
    EXAMINATION: "tests.protocol.test_hangs",
    HANGS: "tests.health.test_hangs",
    ROLLBACK: "tests.protocol.test_rollback",
    STRAGGLERS: "tests.health.test_stragglers",
}
"""The test module with the tables for each module."""

HISTORIES = 2000
"""Maximum number of simulated histories for one mutant."""

_ROOT = Path(__file__).parents[2]


def failing_table(*patches: Patch) -> str | None:
    """Return the first row of a table that fails with ``patches``; None if none fails."""
    code = load(*patches)
    names = sorted({TABLES[patch.module] for patch in patches} if patches else set(TABLES.values()))
    rows = (failing_row(code.tests(name)) for name in names)
    return next((row for row in rows if row is not None), None)


def failing_simulation(*patches: Patch, histories: int = HISTORIES, profile: str | None = None) -> str | None:
    """Return the first simulated history with ``patches`` that violates a property; None if there is none."""
    profiles = [each for each in reversed(PROFILES) if profile == each.name or (profile is None and not each.final)]
    for seed in range(histories):
        chosen = profiles[seed % len(profiles)]
        violation = violation_of(scenario(seed, chosen), patches)
        if violation is not None:
            return f"{chosen.name}, seed {seed}: {str(violation).splitlines()[0]}"
    return None


def failing_tests(patch: Patch, tests: str, scratch: Path) -> str | None:
    """Return the first test of a file or folder that fails on a copy of the code with ``patch``; None if none fails."""
    for name in ("hpcelastic", "tests"):
        shutil.copytree(_ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_ROOT / "pyproject.toml", scratch)
    source = (scratch / patch.module.replace(".", "/")).with_suffix(".py")
    source.write_text(source.read_text().replace(patch.old, patch.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests]
    environ = {**os.environ, "PYTHONPATH": str(scratch)}  # for the processes that a test starts
    done = subprocess.run(command, cwd=scratch, env=environ, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else None
