"""Run every mutant and print a table of the mutants and their finders: ``python -m tests.mutants``."""

import multiprocessing
import sys
import tempfile
from pathlib import Path

from tests.mutants import shell
from tests.mutants.finders import TABLES, failing_simulation, failing_table, failing_tests
from tests.mutants.test_mutants import BY_TESTS, MUTANTS, UNSEEN


def found_by(name: str) -> tuple[str, list[str]]:
    """Return the name of a mutant and all its finders."""
    patch, found = MUTANTS[name], []
    if patch.module in TABLES and (row := failing_table(patch)) is not None:
        found.append(f"table: {row.partition(':')[0]}")
    if name not in UNSEEN and (history := failing_simulation(patch, profile=shell.PROFILE_OF.get(name))) is not None:
        found.append(f"simulator: {history}")
    if name in BY_TESTS:
        with tempfile.TemporaryDirectory() as scratch:
            if (test := failing_tests(patch, BY_TESTS[name], Path(scratch))) is not None:
                found.append(f"test: {test}")
    return name, found


def main() -> int:
    missed = 0
    width = max(map(len, MUTANTS))
    with multiprocessing.Pool() as pool:
        for name, found in pool.imap(found_by, MUTANTS):
            missed += not found
            for i, how in enumerate(found or ["NOT FOUND"]):
                print(f"{name if i == 0 else '':{width}}  {how[:110]}", flush=True)
    print(f"{len(MUTANTS)} mutants, {len(MUTANTS) - missed} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
