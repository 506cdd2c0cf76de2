"""A mistake in the protocol would be found: each that was seeded is, by the tables, by the simulator or by both."""

import pytest

from tests.mutants.mutants import MUTANTS, UNSEEN
from tests.mutants.tables import failing_row
from tests.protocol import test_decide
from tests.protocol.referee import Violation
from tests.protocol.simulation import Simulation
from tests.protocol.test_simulation import PROFILES
from tests.protocol.under_test import ASSIGNMENT, DECIDE, Patch, load

SEEDS = range(25)


def failing_table(*patches: Patch) -> str | None:
    code = load(*patches)
    modules = {**vars(code.decide), **vars(code.assignment)}
    names = ("decide", "close", "reopen", "Decision", "assignment", "Assignment")
    return failing_row(test_decide, {name: modules[name] for name in names})


def failing_simulation(*patches: Patch) -> str | None:
    for seed in SEEDS:
        for profile in reversed(PROFILES):
            try:
                Simulation(seed, profile, size=2 + seed % 5, patches=patches).run()
            except Violation as violation:
                return str(violation)
    return None


def test_no_fault_is_found_where_none_was_seeded() -> None:
    assert failing_table() is None
    assert failing_simulation() is None


@pytest.mark.parametrize("name", [name for name, patch in MUTANTS.items() if patch.module in (DECIDE, ASSIGNMENT)])
def test_the_tables_find(name: str) -> None:
    assert failing_table(MUTANTS[name]) is not None


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in UNSEEN])
def test_the_simulator_finds(name: str) -> None:
    assert failing_simulation(MUTANTS[name]) is not None


def test_a_mutant_whose_place_has_gone_is_noticed() -> None:
    with pytest.raises(ValueError, match="occurs 0 times, not once"):
        load(Patch(DECIDE, "no such text", ""))
