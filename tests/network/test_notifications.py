from hpcelastic.network import notifications
from hpcelastic.network.notifications import NOTIFICATION_INTERVAL, KnownVersions, RateLimiter, ReplayFilter


def test_a_notification_counts_once() -> None:
    replay_filter = ReplayFilter()
    assert [replay_filter.is_new("a@1", sequence) for sequence in (5, 5, 4, 6, 5)] == [True, False, False, True, False]
    assert replay_filter.is_new("b@1", 1), "each sender has its own numbers"


def test_the_replay_filter_is_bounded() -> None:
    replay_filter = ReplayFilter()
    senders = [f"n{index}@1" for index in range(notifications._MAX_SENDERS + 1)]
    assert all(replay_filter.is_new(sender, 1) for sender in senders)
    assert not replay_filter.is_new(senders[-1], 1)
    assert not replay_filter.is_new(senders[1], 1)
    assert len(replay_filter._highest) == notifications._MAX_SENDERS


def test_the_first_notification_passes_at_once() -> None:
    limiter = RateLimiter()
    assert limiter.deadline is None and limiter.take(100.0) is None
    limiter.add(0)
    assert limiter.deadline is not None and limiter.deadline <= 100.0
    assert limiter.take(100.0) == 0
    assert limiter.deadline is None and limiter.take(200.0) is None


def test_a_flood_is_limited_and_the_last_notification_is_not_lost() -> None:
    limiter, passed = RateLimiter(), []
    for step in range(1000):  # one notification a millisecond
        limiter.add(step)
        version = limiter.take(step / 1000)
        passed += [] if version is None else [version]
    assert len(passed) <= 1.0 / NOTIFICATION_INTERVAL + 1
    assert limiter.deadline is not None
    assert limiter.take(limiter.deadline) == 999


def test_the_newest_of_the_waiting_versions_wins() -> None:
    limiter = RateLimiter()
    limiter.add(1)
    assert limiter.take(0.0) == 1
    for version in (4, 9, 2):
        limiter.add(version)
    assert limiter.take(NOTIFICATION_INTERVAL / 2) is None
    assert limiter.take(NOTIFICATION_INTERVAL) == 9


def test_an_agent_is_notified_of_a_version_once() -> None:
    versions = KnownVersions()
    assert [versions.add_heartbeat(version) for version in (3, 3, 2, 4)] == [True, False, False, True]
    assert (versions.newest, [versions.learn(version) for version in (4, 4, 3)]) == (0, [True, False, False])
    assert versions.newest == 4
    versions.add_datagram(5)
    assert not versions.add_heartbeat(5) and versions.newest == 4, "the datagram names it, the agent does not know it"
    assert versions.learn(6) and not versions.add_heartbeat(6), "the agent knows it already"


def test_a_version_was_sent_to_all_if_a_datagram_has_brought_it() -> None:
    versions = KnownVersions()
    versions.learn(1)
    assert not versions.sent_to_all, "the agent has written or read it"
    versions.add_datagram(2)
    versions.learn(2)
    assert versions.sent_to_all
    versions.add_heartbeat(3)
    versions.learn(3)
    assert not versions.sent_to_all, "only a heartbeat has brought it"
