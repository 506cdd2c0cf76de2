"""The phases that a worker announces to its agent."""

import math

import pytest

from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.training import phase


@pytest.mark.parametrize(
    ("limit", "seconds"), [(None, 0), (0.1, 1), (600, 600), (7.6, 8), (math.inf, 2**31), (1e300, 2**31)]
)
def test_a_phase_has_a_whole_number_of_seconds(
    limit: float | None, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit may be ``time_left()``, which is infinite without a request to stop."""
    page = ControlPage.make(1)
    for name, value in {"CONTROL_PAGE": page.name, "ROUND": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(f"HPCELASTIC_{name}", value)
    with phase("evaluate", limit):
        pass
    marks = [(mark.kind, mark.value) for mark in page.marks(0).read()]
    assert marks == [(MarkKind.EVALUATING, seconds), (MarkKind.PHASE_ENDED, 0)]


@pytest.mark.parametrize("limit", [0, -1, math.nan])
def test_a_limit_is_more_than_nothing(limit: float) -> None:
    with pytest.raises(ValueError, match="it must be a number of seconds, more than 0"), phase("evaluate", limit):
        pass
