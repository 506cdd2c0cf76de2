from itertools import pairwise

import pytest

from hpcelastic.protocol.failure_detector import (
    FAST_REDIAL_DELAY,
    FAST_REDIAL_TIMEOUT,
    HEARTBEAT_INTERVAL,
    REPORT_INTERVAL,
    SLOW_REDIAL_DELAY,
    PeerFailureDetector,
    heartbeat_interval,
)
from hpcelastic.protocol.peers import PeerHeard, PeerRefused, PeerSilent

NODE = "a@1"
TICK = 0.01
SILENCE_TIMEOUT, LINK_TIMEOUT = 3 * HEARTBEAT_INTERVAL, 6 * HEARTBEAT_INTERVAL


def test_heartbeats_of_a_run_with_long_leases_are_rare() -> None:
    assert [heartbeat_interval(lease) for lease in (2.0, 4.0, 8.0, 25.0)] == [0.5, 0.5, 1.0, 3.125]
    detector = PeerFailureDetector(NODE, 0.0, 2.0)
    detector.link_established(0.0)
    assert detector.check_silence(6.0) is None and not detector.misses_heartbeats(6.0)
    assert detector.check_silence(6.1) == PeerSilent(NODE) and detector.misses_heartbeats(6.1)
    assert not detector.link_timed_out(12.0) and detector.link_timed_out(12.1)
    never = PeerFailureDetector(NODE, 0.0, 2.0)
    assert never.check_silence(12.0) is None and never.check_silence(12.1) == PeerSilent(NODE)


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
    """Return the times at which `PeerRefused` is reported if every dial is refused."""
    reported, now = [], since
    while now < until:
        if detector.next_dial is not None and detector.next_dial <= now:
            detector.dial_started(now)
            if detector.dial_refused(now):
                reported.append(now)
        now += TICK
    return reported


def test_refusals_over_some_time_are_reported_repeatedly() -> None:
    reported = refusing(broken(), 0.0, 5.0)
    assert 0.09 <= reported[0] <= 0.09 + 2 * FAST_REDIAL_DELAY
    gaps = [later - earlier for earlier, later in pairwise(reported)]
    assert gaps and all(REPORT_INTERVAL * 0.8 <= gap <= REPORT_INTERVAL * 2 for gap in gaps)


def test_a_report_needs_three_refusals_in_a_row() -> None:
    detector = broken()
    for now in (0.0, 0.1):
        assert detector.dial_refused(now) is None
    detector.dial_failed()
    for now in (0.2, 0.3):
        assert detector.dial_refused(now) is None
    assert detector.dial_refused(0.4) == PeerRefused(NODE)


def test_a_report_needs_refusals_over_some_time() -> None:
    detector = broken()
    assert [detector.dial_refused(0.01 * step) for step in range(9)] == [None] * 9
    assert detector.dial_refused(0.09) == PeerRefused(NODE)


@pytest.mark.parametrize(
    "detector",
    [PeerFailureDetector(NODE, 0.0), broken(port_confirmed=False), linked()],
    ids=["port never confirmed", "linked only by a call of the peer", "linked"],
)
def test_a_refusal_that_proves_nothing_is_not_reported(detector: PeerFailureDetector) -> None:
    assert [detector.dial_refused(float(now)) for now in range(10)] == [None] * 10


def test_a_new_link_ends_a_refusal() -> None:
    detector = broken()
    assert refusing(detector, 0.0, 1.0)
    detector.link_established(1.0)
    assert not detector.refused
    detector.link_lost(2.0)
    assert detector.dial_refused(2.0) is None


def test_silence_is_reported_at_every_check_and_its_end_once() -> None:
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


def test_a_peer_without_a_link_is_silent_later() -> None:
    detector = PeerFailureDetector(NODE, 0.0)
    assert detector.check_silence(LINK_TIMEOUT) is None
    assert detector.check_silence(LINK_TIMEOUT + 0.1) == PeerSilent(NODE)
    assert detector.link_established(4.0) == PeerHeard(NODE)


def test_a_peer_that_refuses_is_not_reported_as_silent() -> None:
    detector = broken()
    refusing(detector, 0.0, 5.0)
    assert detector.check_silence(5.0) is None


def test_a_pause_of_our_own_is_not_silence() -> None:
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
    """Return the times at which dials start if each fails at once."""
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
    assert 2 <= len([now for now in started if now >= 8.0]) <= 2.0 / REPORT_INTERVAL


def test_the_interval_of_dials_to_a_peer_never_reached_grows() -> None:
    started = dials(PeerFailureDetector(NODE, 0.0), 0.0, 20.0)
    assert len([now for now in started if now < LINK_TIMEOUT]) <= LINK_TIMEOUT / REPORT_INTERVAL + 1
    assert 1 <= len([now for now in started if now >= 10.0]) <= 10.0 / SLOW_REDIAL_DELAY + 1


def test_a_linked_peer_is_not_dialled() -> None:
    assert linked().next_dial is None
    assert linked(port_confirmed=False).next_dial is not None, "its port is not confirmed yet"


def test_after_a_close_the_next_dial_waits() -> None:
    detector = linked()
    detector.link_closed(1.0)
    assert detector.next_dial == 1.0 + REPORT_INTERVAL


def test_the_reset_of_a_hung_dial_makes_redials_fast_again() -> None:
    detector = broken()
    detector.dial_started(0.0)
    detector.dial_reset(60.0, started=0.0)
    assert detector.next_dial == 60.0
    assert refusing(detector, 60.0, 61.0)[0] < 60.5


def test_quick_resets_do_not_make_redials_fast() -> None:
    detector = broken()
    dials(detector, 0.0, 5.0)
    detector.dial_started(5.0)
    detector.dial_reset(5.1, started=5.0)
    assert detector.next_dial == 5.0 + REPORT_INTERVAL


def test_a_link_that_is_made_again_is_heard() -> None:
    detector = PeerFailureDetector(NODE, 0.0)
    assert detector.link_established(0.0) is None
    detector.link_lost(1.0)
    assert detector.link_established(1.1) == PeerHeard(NODE)
    assert detector.link_established(1.2) is None, "another link has replaced one that was not lost"
