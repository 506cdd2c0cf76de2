from itertools import pairwise

import pytest

from hpcelastic.protocol.failure_detector import (
    FAST_REDIAL_DELAY,
    FAST_REDIAL_TIMEOUT,
    HEARTBEAT_INTERVAL,
    LINK_TIMEOUT,
    SILENCE_TIMEOUT,
    SLOW_REDIAL_DELAY,
    PeerFailureDetector,
)
from hpcelastic.protocol.peers import PeerHeard, PeerRefused, PeerSilent

NODE = "a@1"
TICK = 0.01


def linked(port_confirmed: bool = True) -> PeerFailureDetector:
    detector = PeerFailureDetector(NODE, 0.0)
    if port_confirmed:
        detector.port_answered()
    assert detector.link_established(0.0) is None
    return detector


def broken(port_confirmed: bool = True) -> PeerFailureDetector:
    detector = linked(port_confirmed)
    detector.link_lost(0.0)
    return detector


def refusing(detector: PeerFailureDetector, since: float, until: float) -> list[float]:
    """When `PeerRefused` is reported if every dial is refused."""
    reported, now = [], since
    while now < until:
        if detector.next_dial is not None and detector.next_dial <= now:
            detector.dial_started(now)
            if detector.dial_refused(now):
                reported.append(now)
        now += TICK
    return reported


def test_refused_is_told_after_several_refusals_over_a_while_and_again() -> None:
    reported = refusing(broken(), 0.0, 5.0)
    assert 0.15 <= reported[0] <= 0.15 + 2 * FAST_REDIAL_DELAY
    gaps = [later - earlier for earlier, later in pairwise(reported)]
    assert gaps and all(HEARTBEAT_INTERVAL * 0.8 <= gap <= HEARTBEAT_INTERVAL * 2 for gap in gaps)


def test_refused_needs_three_in_a_row() -> None:
    detector = broken()
    for now in (0.0, 0.1):
        assert detector.dial_refused(now) is None
    detector.dial_failed()
    for now in (0.2, 0.3):
        assert detector.dial_refused(now) is None
    assert detector.dial_refused(0.4) == PeerRefused(NODE)


def test_refused_needs_time() -> None:
    detector = broken()
    assert [detector.dial_refused(0.01 * step) for step in range(10)] == [None] * 10
    assert detector.dial_refused(0.15) == PeerRefused(NODE)


@pytest.mark.parametrize(
    "detector",
    [PeerFailureDetector(NODE, 0.0), broken(port_confirmed=False), linked()],
    ids=["port never confirmed", "linked by its own call only", "linked"],
)
def test_a_refusal_that_proves_nothing_is_not_told(detector: PeerFailureDetector) -> None:
    assert [detector.dial_refused(float(now)) for now in range(10)] == [None] * 10


def test_a_new_link_ends_a_refusal() -> None:
    detector = broken()
    assert refusing(detector, 0.0, 1.0)
    detector.link_established(1.0)
    assert not detector.refused
    detector.link_lost(2.0)
    assert detector.dial_refused(2.0) is None


def test_silence_is_told_at_every_look_and_its_end_once() -> None:
    detector = linked()
    assert detector.check_silence(SILENCE_TIMEOUT) is None
    assert (
        detector.check_silence(SILENCE_TIMEOUT + 0.1)
        == detector.check_silence(SILENCE_TIMEOUT + 0.6)
        == PeerSilent(NODE)
    )
    assert detector.heartbeat_received(4.0) == PeerHeard(NODE)
    assert detector.heartbeat_received(4.5) is None
    assert detector.check_silence(4.6) is None


def test_one_never_linked_is_silent_later() -> None:
    detector = PeerFailureDetector(NODE, 0.0)
    assert detector.check_silence(LINK_TIMEOUT) is None
    assert detector.check_silence(LINK_TIMEOUT + 0.1) == PeerSilent(NODE)
    assert detector.link_established(4.0) == PeerHeard(NODE)


def test_one_that_refuses_is_not_silent_as_well() -> None:
    detector = broken()
    refusing(detector, 0.0, 5.0)
    assert detector.check_silence(5.0) is None


def test_our_own_pause_is_no_silence() -> None:
    detector = linked()
    detector.ignore_pause(10.0)
    assert detector.check_silence(11.0) is None and not detector.link_timed_out(11.0)


def test_a_link_without_heartbeats_times_out() -> None:
    detector = linked()
    assert not detector.link_timed_out(LINK_TIMEOUT)
    assert detector.link_timed_out(LINK_TIMEOUT + 0.1)
    detector.link_lost(LINK_TIMEOUT + 0.1)
    assert not detector.link_timed_out(LINK_TIMEOUT + 5), "there is no link that could time out"


def dials(detector: PeerFailureDetector, since: float, until: float) -> list[float]:
    """When dials start if each fails at once."""
    started, now = [], since
    while now < until:
        if detector.next_dial is not None and detector.next_dial <= now:
            detector.dial_started(now)
            detector.dial_failed()
            started.append(now)
        now += TICK
    return started


def test_a_lost_link_is_redialled_at_once_then_fast_then_slowly() -> None:
    started = dials(broken(), 0.0, 10.0)
    assert started[0] == 0.0
    assert (
        FAST_REDIAL_TIMEOUT / FAST_REDIAL_DELAY / 2
        <= len([now for now in started if now < FAST_REDIAL_TIMEOUT])
        <= FAST_REDIAL_TIMEOUT / FAST_REDIAL_DELAY + 1
    )
    assert 2 <= len([now for now in started if now >= 8.0]) <= 2.0 / HEARTBEAT_INTERVAL


def test_one_never_reached_is_called_more_and_more_rarely() -> None:
    started = dials(PeerFailureDetector(NODE, 0.0), 0.0, 20.0)
    assert len([now for now in started if now < LINK_TIMEOUT]) <= LINK_TIMEOUT / HEARTBEAT_INTERVAL + 1
    assert 1 <= len([now for now in started if now >= 10.0]) <= 10.0 / SLOW_REDIAL_DELAY + 1


def test_one_linked_and_met_is_not_called() -> None:
    assert linked().next_dial is None
    assert linked(port_confirmed=False).next_dial is not None, "its port is not confirmed yet"


def test_after_a_close_the_next_dial_waits() -> None:
    detector = linked()
    detector.link_closed(1.0)
    assert detector.next_dial == 1.0 + HEARTBEAT_INTERVAL


def test_the_reset_of_a_dial_that_hung_brings_fast_redials_again() -> None:
    detector = broken()
    detector.dial_started(0.0)
    detector.dial_reset(60.0, started=0.0)
    assert detector.next_dial == 60.0
    assert refusing(detector, 60.0, 61.0)[0] < 60.5


def test_resets_in_quick_succession_bring_no_fast_redials() -> None:
    detector = broken()
    dials(detector, 0.0, 5.0)
    detector.dial_started(5.0)
    detector.dial_reset(5.1, started=5.0)
    assert detector.next_dial == 5.0 + HEARTBEAT_INTERVAL
