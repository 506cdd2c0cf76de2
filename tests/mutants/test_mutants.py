"""Tables, the simulator or the tests of a module find each fault that is inserted into the code."""

from pathlib import Path

import pytest

from tests.mutants import accounts, hangs, mutants, shell, snapshots
from tests.mutants.changed import at_night_unless_changed
from tests.mutants.finders import TABLES, failing_simulation, failing_table, failing_tests
from tests.protocol.under_test import DECIDE, Patch, load, source

MUTANTS = mutants.MUTANTS | shell.MUTANTS | snapshots.MUTANTS | hangs.MUTANTS | accounts.MUTANTS
BY_TESTS = shell.BY_TESTS | snapshots.BY_TESTS | accounts.BY_TESTS
UNSEEN = mutants.UNSEEN | shell.UNSEEN | set(snapshots.BY_TESTS) | set(hangs.MUTANTS) | set(accounts.MUTANTS)


@pytest.mark.nightly
def test_no_fault_is_found_without_a_mutant() -> None:
    assert failing_table() is None
    assert failing_simulation(histories=50) is None


@pytest.mark.parametrize("name", at_night_unless_changed({n: p for n, p in MUTANTS.items() if p.module in TABLES}))
def test_the_tables_find(name: str) -> None:
    assert failing_table(MUTANTS[name]) is not None


@pytest.mark.parametrize(
    "name", at_night_unless_changed({n: p for n, p in MUTANTS.items() if n not in UNSEEN}, late=shell.LATE)
)
def test_the_simulator_finds(name: str) -> None:
    assert failing_simulation(MUTANTS[name], profile=shell.PROFILE_OF.get(name)) is not None


@pytest.mark.nightly
@pytest.mark.parametrize("name", BY_TESTS)
def test_the_tests_of_its_module_find(name: str, tmp_path: Path) -> None:
    assert failing_tests(MUTANTS[name], BY_TESTS[name], tmp_path) is not None


def test_mutants_that_the_simulator_misses_have_another_finder() -> None:
    tables = {name for name, patch in MUTANTS.items() if patch.module in TABLES}
    assert tables | set(BY_TESTS) >= UNSEEN


@pytest.mark.parametrize("patch", MUTANTS.values(), ids=MUTANTS)
def test_the_source_has_the_text_of_each_mutant(patch: Patch) -> None:
    patch.applied(source(patch.module).read_text())


def test_a_mutant_without_its_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="occurs 0 times, not once"):
        load(Patch(DECIDE, "no such text", ""))
