"""The nightly and the weekly check: results of their parts are kept, and a failed part is repeated."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.periodic import __main__ as periodic
from tests.periodic.parts import Part, nightly, weekly
from tests.periodic.record import CHECKOUT, Record, holds

pytestmark = pytest.mark.nightly  # not useful for changes of the package

SOURCE = "tests/periodic/parts.py"


def part(code: str, budget: float = 1.0) -> Part:
    return Part("a", (sys.executable, "-c", code), budget, (SOURCE,))


@pytest.fixture(autouse=True)
def logs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "LOGS", tmp_path)


@pytest.mark.parametrize(
    "code, budget, passed, outcome",
    [
        pytest.param("print('3 passed')", 1.0, True, "3 passed", id="passes"),
        pytest.param("print('1 failed'); raise SystemExit(1)", 1.0, False, "1 failed", id="fails"),
        pytest.param("import time; time.sleep(600)", 0.01, False, "over its budget", id="takes too long"),
        pytest.param("", 1.0, True, "no output", id="prints nothing"),
    ],
)
def test_a_part_is_run_and_judged(code: str, budget: float, passed: bool, outcome: str) -> None:
    result = periodic.run(part(code, budget), "1/1 a")
    assert (result.passed, result.outcome) == (passed, outcome)


def test_a_result_is_valid_until_a_source_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(tmp_path / "results.jsonl")
    passing = part("print('1 passed')")
    assert periodic.report([passing], record) == 1 and "not run" in capsys.readouterr().out
    result = periodic.run(passing, "1/1 a")
    record.add(result)
    assert periodic.report([passing], record) == 0
    record.add(replace(result, content="other sources"))
    assert not holds(record.latest()["a"], passing)
    assert periodic.report([passing], record) == 1 and "out of date" in capsys.readouterr().out


@pytest.mark.parametrize("parts", [*(pytest.param(nightly(day), id=f"night {day}") for day in range(3)), weekly()])
def test_parts_have_unique_names_and_existing_programs(parts: list[Part]) -> None:
    assert len({each.name for each in parts}) == len(parts)
    for each in parts:
        program = each.command[0]
        assert program in ("make", sys.executable) or (CHECKOUT / program).is_file()
        assert all((CHECKOUT / source).exists() for source in each.sources)


def test_the_nightly_check_takes_at_most_90_minutes() -> None:
    assert sum(each.budget for each in nightly(0)) <= 90
