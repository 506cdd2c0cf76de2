"""A run with many rounds: its files and its agents stay as small as they were, and its account is exact."""

from pathlib import Path

import pytest

from benchmarks.long_run import lived, row
from hpcelastic.agent import old_rounds
from hpcelastic.storage import events

ROUNDS, KEPT = 320, 40


def test_a_long_run_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 60_000)
    monkeypatch.setattr(old_rounds, "_MOST", KEPT)
    half, end = lived(ROUNDS, 2, tmp_path / "run", KEPT, days=2)
    print(row(half), row(end), sep="\n")
    assert end.agents > half.agents and end.faults > 1.8 * half.faults
    for size in (half, end):
        assert size.counted == size.faults
        assert size.largest_log < 160_000  # 80 rounds and the pause until the next removal; 370 kB if all stay
        assert size.leases < 12
    assert end.account < 1.5 * half.account + 50_000
    assert end.agent < 1.5 * half.agent
