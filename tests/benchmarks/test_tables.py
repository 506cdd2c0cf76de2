"""Every table is made from the results only, and shows missing results."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as bench
from benchmarks import gpu, operations, plot, recovery, register, report, scale, stopping, torch_store

MACHINE = {
    "cpu": "a cpu", "cores": 2, "memory": 2**33, "system": "Linux", "filesystem": "ext4", "gpu": "none",
    "python": "3.11", "torch": "2.13", "commit": "abc", "date": "2026-01-01", "load": 0.5,
}  # fmt: skip

PHASES = {"agent": 0.0, "detect": 0.1, "stop": 0.1, "rendezvous": 0.2, "start": 0.3, "first step": 0.3}

RACE: dict[str, Any] = {
    "parameters": {"repeat": 2, "timeout": 60.0},
    "settings": {"silence": {"rendezvous": {"lease": 4.0}}},
    "left_out": ["ft_launcher is left out: no network"],
    "runs": [
        {"scenario": "crash", "side": "hpcelastic", "seconds": 1.0, "phases": PHASES},
        {"scenario": "crash", "side": "torchrun", "seconds": 4.0, "phases": None},
        {"scenario": "crash", "side": "hpcelastic", "seconds": 1.0, "phases": PHASES},
        {"scenario": "crash", "side": "torchrun", "seconds": 4.0, "phases": None},
        {"scenario": "silence", "side": "hpcelastic", "seconds": 6.0, "phases": None},
        {"scenario": "silence", "side": "torchrun", "seconds": None, "phases": None},
    ],
}


def test_the_table_of_recovery() -> None:
    race, phases = recovery.tables(RACE)
    assert race.head == ("scenario", "hpcelastic", "torchrun", "ours / torchrun")
    assert race.rows == (
        ("crash", "1.00 (1.00–1.00)", "4.00 (4.00–4.00)", "0.250"),
        ("silence", "6.00", "never (1 of 1)", "-"),
    )
    assert "hpcelastic in these scenarios: silence: rendezvous.lease = 4" in race.note
    assert "ft_launcher is left out: no network." in race.note
    assert phases.rows == (
        ("crash", "0", "0.100", "0.100", "0.200", "0.300", "0.300"),
        ("silence", "-", "-", "-", "-", "-", "-"),
    )


def test_the_picture_shows_every_scenario(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        plot.recovery(RACE, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    for text in ("crash", "silence", "never (1 of 1)", *PHASES):
        assert f"<!-- {text} -->" in drawn
    assert drawn == (tmp_path / "two.svg").read_text()


def test_rounds_by_their_size() -> None:
    runs = [
        {"nodes": 4, "side": "local", "seconds": 1.0, "operations": {"list": 8, "lock": 4}, "after_loss": 0.25},
        {"nodes": 4, "side": scale.TORCH, "seconds": 2.0, "operations": None},
        {"nodes": 8, "side": "local", "seconds": None, "operations": None, "after_loss": None},
        {"nodes": 8, "side": scale.TORCH, "seconds": None, "operations": None},
    ]
    times, asked = scale.tables({"parameters": {"repeat": 1, "timeout": 60.0}, "runs": runs})
    assert times.rows == (
        ("4", "1.00", "2.00", "0.500", "0.250"),
        ("8", "never (1 of 1)", "never (1 of 1)", "-", "-"),
    )
    four, eight = (dict(zip(asked.head, row, strict=True)) for row in asked.rows)
    assert (four["operations"], four["list"], four["lock"], four["open"]) == ("3.00", "2.00", "1.00", "0")
    assert (eight["operations"], eight["list"]) == ("-", "-")


def test_operations_are_listed_per_agent() -> None:
    counts = {"list": 10, "open": 6, "bytes read": 4096}
    runs, together = [{"agents": 2, "what": "idle minute", "counts": counts}], [{"runs": 4, "counts": counts}]
    many = [{"runs": 2, "nodes": 3, "counts": counts}]
    assert len(operations.tables({"left_out": [], "runs": runs, "together": together})) == 2
    table, shared, hundreds = operations.tables({"left_out": [], "runs": runs, "together": together, "many": many})
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert (row["operations"], row["list"], row["open"], row["lock"]) == ("8.00", "5.00", "3.00", "0")
    assert (row["read"], row["written"]) == ("2.00 KiB", "0 B")
    assert dict(zip(shared.head, shared.rows[0], strict=True))["operations a second of all"] == "0.267"
    row = dict(zip(hundreds.head, hundreds.rows[0], strict=True))
    assert (row["runs"], row["nodes of each"], row["operations a second of all"], row["list"]) == (
        "2",
        "3",
        "0.267",
        "5.00",
    )


def test_rates_and_growth_of_registers() -> None:
    sides = (register.OURS, register.TCP)
    races = [
        {"side": register.OURS, "contenders": 8, "won": 100, "tried": 200},
        {"side": register.TCP, "contenders": 8, "won": 1000, "tried": 1000},
    ]
    growth = [
        {"side": side, "operations": made, "seconds": 0.5, "files": 3, "bytes": 2048, "newcomer": 0.01}
        for side in sides
        for made in (100, 1000)
    ]
    parameters = {"sides": sides, "contenders": [8], "seconds": 5.0, "repeat": 1}
    contention, grown = register.tables({"parameters": parameters, "races": races, "growth": growth})
    assert contention.rows == (("8", "20.0", "200", "0.100"),)
    assert grown.rows[1] == (register.OURS, "1,000", "5.00", "3", "2.00 KiB", "10.0")
    assert grown.rows[3] == (register.TCP, "1,000", "5.00", "-", "-", "10.0")


def test_the_first_and_last_costs_of_torch_stores() -> None:
    seconds = [1e-4] + [1e-5] * 9 + [9e-4, 2e-4] * 5 + [1e-5] * 70 + [3e-4] * 10
    runs = [
        {"side": side, "seconds": seconds, "newcomers": [1e-3, 2e-3], "files": 1234, "bytes": 2048}
        for side in (torch_store.OURS, torch_store.TCP)
    ]
    (table,) = torch_store.tables({"operations": 99_600, "runs": runs})
    paces, newcomers = ("100", "200", "300", "3.00", "1.50"), ("1,000", "2,000")
    assert table.rows == (
        (torch_store.OURS, *paces, "1,234", "2.00 KiB", *newcomers),
        (torch_store.TCP, *paces, "-", "-", *newcomers),
    )


def test_polls_by_ranks_and_steps() -> None:
    runs = [
        {"ranks": ranks, "step": step, "seconds": ranks * 1e-5 + step / 1000}
        for ranks in (1, 2)
        for step in (0.0, 0.02)
    ]
    parameters = {"ranks": [1, 2], "steps": [0.0, 0.02], "calls": 5, "repeat": 1}
    (table,) = stopping.tables({"parameters": parameters, "runs": runs})
    assert table.head == ("ranks", "only calls", "steps of 20 ms")
    assert table.rows == (("1", "10.0", "30.0"), ("2", "20.0", "40.0"))


def test_the_table_reports_a_missing_gpu() -> None:
    (table,) = gpu.tables({"parameters": {}, "workers": 0, "runs": []})
    assert table.rows == (("no GPU on this machine",),)


def test_the_page_has_a_place_for_every_benchmark() -> None:
    page = bench.PAGE.read_text()
    for name in bench.NAMES:
        assert f"a new section {name}" in report.spliced(page, name, f"a new section {name}")


def test_the_page_shows_the_stored_results() -> None:
    page = bench.PAGE.read_text()
    kept = {path.stem: json.loads(path.read_text()) for path in bench.RESULTS.glob("*.json")}
    assert kept.keys() & {*bench.NAMES}
    for name in kept.keys() & {*bench.NAMES}:
        assert report.spliced(page, name, bench.section(name, kept[name])) == page


def test_a_section_names_the_machine() -> None:
    text = bench.section("recovery", {"machine": MACHINE, "results": RACE})
    assert re.match(r"2026-01-01, commit abc: 2 cores of a cpu, 8 GiB", text)
    assert "performance/recovery.svg" in text
