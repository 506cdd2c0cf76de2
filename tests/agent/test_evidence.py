"""What an agent records about the versions of the register, and about signs of the death of other nodes."""

from dataclasses import replace

import pytest

from hpcelastic.agent.evidence import Evidence
from hpcelastic.network import News
from hpcelastic.protocol.events import Decided, Event, PeerSuspected, StateChanged
from hpcelastic.protocol.peers import Notification, PeerHeard, PeerLinkLost, PeerRefused, PeerSilent
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Cause, Participant, Phase, State
from hpcelastic.rendezvous.observation import Commit

RUNNING = State(
    "r",
    Settings(NodeRange(1, 2)),
    Phase.RUNNING,
    1,
    tuple(Participant(f"n{i}@0-a", 1, "h", 1) for i in range(2)),
    reason="round 1 formed on 2 nodes",
)
LOST = replace(RUNNING, phase=Phase.JOINING, cause=Cause.NODE, lost="n1@0-a", reason="n1 was lost")


@pytest.fixture
def logged() -> list[Event]:
    return []


@pytest.fixture
def evidence(logged: list[Event]) -> Evidence:
    return Evidence(logged.append, State("r", RUNNING.settings))


def test_the_members_of_a_round_are_logged_once(evidence: Evidence, logged: list[Event]) -> None:
    for version, state in ((1, RUNNING), (2, replace(RUNNING, stacks=1)), (3, LOST), (4, replace(RUNNING, round=2))):
        evidence.committed(Commit(version, state, ""))
    members = [event.members for event in logged if isinstance(event, Decided)]
    assert members == [("n0", "n1"), None, None, ("n0", "n1")]


def test_a_decision_has_its_evidence(evidence: Evidence, logged: list[Event]) -> None:
    evidence.committed(Commit(3, LOST, "reported by n0", 2.5))
    assert logged == [
        Decided(
            version=3,
            phase=Phase.JOINING,
            round=1,
            reason="n1 was lost",
            cause=Cause.NODE,
            lost="n1@0-a",
            evidence="reported by n0",
            silence=2.5,
        )
    ]


def test_a_later_round_does_not_repeat_the_loss(evidence: Evidence, logged: list[Event]) -> None:
    evidence.committed(Commit(4, replace(LOST, phase=Phase.RUNNING, round=2, cause=None), ""))
    (event,) = logged
    assert isinstance(event, Decided) and event.lost is None


@pytest.mark.parametrize(
    ("news", "sign"),
    [(PeerLinkLost("n1@0-a"), "link lost"), (PeerRefused("n1@0-a"), "refused"), (PeerSilent("n1@0-a"), "silent")],
    ids=["link lost", "refused", "silent"],
)
def test_each_sign_is_logged_once_in_a_round(evidence: Evidence, logged: list[Event], news: News, sign: str) -> None:
    for version in range(1, 4):
        evidence.observed(version, RUNNING)
        evidence.notified(news)
    signs = [event for event in logged if isinstance(event, PeerSuspected)]
    assert signs == [PeerSuspected(peer="n1@0-a", sign=sign)]
    evidence.observed(4, replace(RUNNING, round=RUNNING.round + 1))
    evidence.notified(news)
    assert logged[-1] == signs[0]


def test_other_news_are_no_signs(evidence: Evidence, logged: list[Event]) -> None:
    evidence.notified(Notification(7))
    evidence.notified(PeerHeard("n1@0-a"))
    assert logged == []


def test_a_version_is_logged_when_it_is_read_first(evidence: Evidence, logged: list[Event]) -> None:
    for version, state in ((1, RUNNING), (1, RUNNING), (2, LOST)):
        evidence.observed(version, state)
    assert [(e.version, e.cause, e.lost) for e in logged if isinstance(e, StateChanged)] == [
        (1, None, None),
        (2, Cause.NODE, "n1@0-a"),
    ]
