"""Excluded nodes, with durations and reasons."""

import pytest

from hpcelastic.health.incidents import Incident, IncidentKind
from hpcelastic.health.verdict import NodeVerdict, format_duration, nodes_out, verdicts

NOW, HALF_LIFE = 1_000_000.0, 3600.0
CHECK, HARDWARE, SUSPECT, LOST, FENCED = IncidentKind


def judged(*incidents: tuple[IncidentKind, float]) -> NodeVerdict:
    """Return the verdict on a node with incidents of these kinds, each so many seconds ago."""
    made = [Incident("n1", cause, "seen", NOW - ago) for cause, ago in incidents]
    return verdicts(made, NOW, HALF_LIFE)["n1"]


CASES = {
    "a failed check": ([(CHECK, 0)], True),
    "broken hardware": ([(HARDWARE, 0)], True),
    "a failed check, a little less than a half-life ago": ([(CHECK, 3500)], True),
    "a failed check, a little more than a half-life ago": ([(CHECK, 3700)], False),
    "one loss": ([(LOST, 0)], False),
    "two losses": ([(LOST, 0), (LOST, 60)], False),
    "three losses": ([(LOST, 0), (LOST, 60), (LOST, 600)], True),
    "three losses in a day": ([(LOST, 0), (LOST, 30_000), (LOST, 60_000)], False),
    "one suspect failure": ([(SUSPECT, 0)], False),
    "two suspect failures": ([(SUSPECT, 0), (SUSPECT, 60)], True),
    "a suspect failure and a loss": ([(SUSPECT, 0), (LOST, 0)], True),
    "fenced repeatedly": ([(FENCED, 0)] * 4, False),
    "recorded by a clock that is ahead": ([(LOST, -9000)], False),
}


@pytest.mark.parametrize(("incidents", "out"), CASES.values(), ids=CASES)
def test_whether_a_node_is_excluded(incidents: list[tuple[IncidentKind, float]], out: bool) -> None:
    verdict = judged(*incidents)
    assert verdict.out is out
    assert (verdict.back_in > 0) is out


def test_the_exclusion_ends_at_the_reported_time() -> None:
    assert judged((CHECK, 0)).back_in == pytest.approx(HALF_LIFE)
    ahead = judged((CHECK, 0), (LOST, 100)).back_in
    assert not judged((CHECK, ahead + 1), (LOST, 100 + ahead + 1)).out
    assert judged((CHECK, ahead - 1), (LOST, 100 + ahead - 1)).out


def test_reasons_are_listed_newest_first() -> None:
    assert judged((LOST, 7200), (CHECK, 0)).reasons == ("check failed just now: seen", "lost 2 h ago: seen")


def test_each_node_is_judged_by_its_own_incidents() -> None:
    incidents = [Incident("n2", CHECK, "", NOW), Incident("n1", LOST, "", NOW)]
    assert nodes_out(verdicts(incidents, NOW, HALF_LIFE)) == ("n2",)


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (100, "100 s"), (3599, "60 min"), (7300, "2 h"), (400_000, "5 d")], ids=str
)
def test_the_text_of_a_duration(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
