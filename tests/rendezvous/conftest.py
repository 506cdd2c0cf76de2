import pytest

from hpcelastic.protocol import leaders, polling


@pytest.fixture
def large_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of more than four nodes is a large one."""
    monkeypatch.setattr(leaders, "_LARGE", 4)


@pytest.fixture
def rare_readings(large_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large round, nodes that are no leaders do not read the leases within a test."""
    monkeypatch.setattr(polling, "_MAX_LEASE_RATE", 1e-9)
