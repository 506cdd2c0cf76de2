import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.errors import ConfigError, HpcElasticError, InternalError, StoreError
from hpcelastic.protocol.peers import Notification
from hpcelastic.protocol.state import Member, NodeState, Phase
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.run import read_state
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.storage.leases import read_leases
from tests.rendezvous.nodes import make_world

READY = Member("n1@0-ab", NodeState.READY, 0, 1, "a", 1)
RUNNING = replace(READY, node_state=NodeState.RUNNING, round=1)
LEFT = replace(READY, node_state=NodeState.LEFT, round=1)
NEVER = 1000.0
"""Seconds between turns; longer than any test."""

TIMEOUT = 30.0


class Turns:
    """A rendezvous with the turns of a test. ``react`` gets each member and may raise or block. It polls in every turn,
    and the next turn is due after ``pause`` seconds."""

    def __init__(self, react: Callable[[Member], None] = lambda member: None, pause: float = 0.001) -> None:
        self.members: queue.Queue[Member] = queue.Queue()
        self.react = react
        self.next = pause
        self.again = 0

    def renew(self, member: Member) -> None:
        self.members.put(member)
        self.react(member)

    def poll(self) -> Any:
        return self.members.queue[-1]

    def pause(self) -> float:
        return self.next

    def poll_again(self) -> None:
        self.again += 1


def made(turns: Any, delivered: "queue.Queue[Any]") -> RendezvousThread:
    return RendezvousThread(turns, READY, 0.001, delivered.put, renewed=lambda: None)


@contextlib.contextmanager
def running(turns: Turns, pause: float) -> Iterator[tuple[RendezvousThread, "queue.Queue[Any]"]]:
    delivered: queue.Queue[Any] = queue.Queue()
    turns.next = pause
    thread = made(turns, delivered)
    thread.start()
    try:
        yield thread, delivered
    finally:
        turns.react = lambda member: None
        assert thread.stop(TIMEOUT)
        thread._thread.join(TIMEOUT)
        assert not thread._thread.is_alive()


def test_turns_are_repeated_and_delivered() -> None:
    with running(Turns(), 0.001) as (_, delivered):
        assert [delivered.get(timeout=TIMEOUT) for _ in range(3)] == [READY] * 3


def test_a_publication_is_written_at_once() -> None:
    with running(Turns(), NEVER) as (thread, delivered):
        assert delivered.get(timeout=TIMEOUT) == READY
        thread.publish(RUNNING)
        assert delivered.get(timeout=TIMEOUT) == RUNNING
        thread.publish(LEFT)
        assert delivered.get(timeout=TIMEOUT) == LEFT


def test_a_publication_during_a_turn_is_not_lost() -> None:
    entered, release = threading.Event(), threading.Event()

    def block(member: Member) -> None:
        entered.set()
        assert release.wait(TIMEOUT)

    with running(Turns(block), NEVER) as (thread, delivered):
        assert entered.wait(TIMEOUT)
        thread.publish(RUNNING)
        release.set()
        assert [delivered.get(timeout=TIMEOUT) for _ in range(2)] == [READY, RUNNING]


def test_a_publication_at_the_start_of_a_turn_is_not_lost() -> None:
    delivered: queue.Queue[Any] = queue.Queue()
    thread = made(Turns(pause=NEVER), delivered)

    class NetworkNotifier(threading.Event):
        def clear(self) -> None:
            if thread._member == READY:
                thread.publish(RUNNING)
            super().clear()

    thread._wake = NetworkNotifier()
    thread.start()
    assert delivered.get(timeout=TIMEOUT) == RUNNING
    assert thread.stop(TIMEOUT)


def test_notifications_are_handled_before_the_turn_that_they_cause() -> None:
    turns, heard = Turns(), []
    with running(turns, NEVER) as (thread, delivered):
        assert delivered.get(timeout=TIMEOUT) == READY
        thread.call(lambda rendezvous: heard.append((rendezvous, turns.members.qsize())))  # type: ignore[arg-type]
        assert delivered.get(timeout=TIMEOUT) == READY
        assert heard == [(turns, 1)]


def test_a_version_is_announced_before_the_turn_that_gets_its_notification() -> None:
    entered, release, events = threading.Event(), threading.Event(), []

    def block(member: Member) -> None:
        entered.set()
        assert release.wait(TIMEOUT)

    turns: Any = Turns(block)
    turns.announce = lambda version: events.append(("announced", version))
    turns.receive = lambda news: events.append(("received", news.version))
    with running(turns, NEVER) as (thread, delivered):
        assert entered.wait(TIMEOUT)
        thread.receive(Notification(7))
        assert events == [("announced", 7)], "this turn knows it already"
        release.set()
        assert [delivered.get(timeout=TIMEOUT) for _ in range(2)] == [READY, READY]
        assert events == [("announced", 7), ("received", 7)]


def test_a_turn_without_a_poll_renews_the_lease_and_delivers_nothing() -> None:
    turns, delivered, renewals = Turns(pause=NEVER), queue.Queue(), queue.Queue()
    turns.poll = lambda: None  # type: ignore[method-assign]
    thread = RendezvousThread(turns, READY, NEVER, delivered.put, lambda: renewals.put(turns.members.qsize()))  # type: ignore[arg-type]  # as good
    thread.start()
    assert renewals.get(timeout=TIMEOUT) == 1, "the lease holds already"
    assert thread.stop(TIMEOUT), "the renewed content is published"
    thread._thread.join(TIMEOUT)
    assert delivered.empty()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (StoreError("no space"), StoreError, "no space"),
        (ConfigError("wrong"), ConfigError, "wrong"),
        (OSError(107, "Transport endpoint is not connected"), StoreError, "directory does not answer: .*not connected"),
    ],
    ids=["store", "other", "system"],
)
def test_an_error_is_delivered_and_the_next_turn_follows(
    error: Exception, kind: type[HpcElasticError], text: str
) -> None:
    errors = [error]

    def fail_once(member: Member) -> None:
        if errors:
            raise errors.pop()

    with running(Turns(fail_once), 0.001) as (_, delivered):
        first = delivered.get(timeout=TIMEOUT)
        assert isinstance(first, kind)
        with pytest.raises(kind, match=text):
            raise first
        assert delivered.get(timeout=TIMEOUT) == READY


def test_the_end_of_an_error_is_delivered() -> None:
    errors = [StoreError("no space")]
    turns = Turns(lambda member: None if not errors else _raise(errors.pop()))
    with running(turns, NEVER) as (_, delivered):
        assert isinstance(delivered.get(timeout=TIMEOUT), StoreError)
        assert delivered.get(timeout=TIMEOUT) == READY, "the next turn follows soon after an error"
        assert turns.again == 1


def _raise(error: Exception) -> None:
    raise error


def test_an_internal_error_is_delivered_and_ends_the_thread() -> None:
    def fail(member: Member) -> None:
        raise KeyError("n1")

    turns, delivered = Turns(fail), queue.Queue()
    thread = made(turns, delivered)
    thread.start()
    thread._thread.join(TIMEOUT)
    assert not thread._thread.is_alive()
    assert turns.members.qsize() == delivered.qsize() == 1
    error = delivered.get()
    assert type(error) is InternalError, "not a StoreError, after which an agent would wait"
    assert str(error).startswith("internal error: Traceback (most recent call last):\n")
    assert str(error).endswith("KeyError: 'n1'\n; 'n1'")
    assert thread.stop(0.01) is False


def test_stopping_waits_until_the_last_state_is_published() -> None:
    entered, release = threading.Event(), threading.Event()
    published: list[Member] = []

    def block(member: Member) -> None:
        if member == LEFT:
            entered.set()
            assert release.wait(TIMEOUT)
            published.append(member)

    with running(Turns(block), NEVER) as (thread, _):
        thread.publish(LEFT)
        assert entered.wait(TIMEOUT)
        threading.Timer(0.2, release.set).start()  # a stop without a wait would have ended before
        assert thread.stop(TIMEOUT) is True
        assert published == [LEFT]


def test_stopping_repeats_a_turn_that_fails() -> None:
    failures = [StoreError("hiccup")] * 3

    def fail(member: Member) -> None:
        if member == LEFT and failures:
            raise failures.pop()

    turns = Turns(fail)
    with running(turns, 0.001) as (thread, delivered):
        thread.publish(LEFT)
        assert thread.stop(TIMEOUT)
        assert not failures
        thread._thread.join(TIMEOUT)
        seen = list(turns.members.queue)
        assert seen.count(LEFT) >= 4
        assert sum(isinstance(message, StoreError) for message in delivered.queue) == 3


def test_stopping_ends_in_time_if_the_filesystem_hangs() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(member: Member) -> None:
        if member == LEFT:
            entered.set()
            assert release.wait(TIMEOUT)

    with running(Turns(hang), NEVER) as (thread, _):
        thread.publish(LEFT)
        assert entered.wait(TIMEOUT)
        assert thread.stop(0.01) is False
        release.set()
        thread._thread.join(TIMEOUT)
        assert not thread._thread.is_alive()


def test_no_turn_follows_the_stop() -> None:
    turns = Turns()
    with running(turns, 0.001) as (thread, _):
        assert thread.stop(TIMEOUT)
        thread._thread.join(TIMEOUT)
        taken = turns.members.qsize()
        thread.publish(RUNNING)
        assert turns.members.qsize() == taken
        thread.publish(turns.members.queue[-1])  # so that the fixture's stop finds it published


def test_a_real_rendezvous_forms_a_round_and_departs(tmp_path: Path) -> None:
    world = make_world(tmp_path, 1, 1)
    node = world.node("a")
    outcomes: queue.Queue[Observation] = queue.Queue()
    thread = RendezvousThread(node.rendezvous, node.member, 0.01, outcomes.put, lambda: None)  # type: ignore[arg-type]
    thread.start()
    try:
        assert outcomes.get(timeout=TIMEOUT).state.phase is Phase.RUNNING
        departed = replace(node.member, node_state=NodeState.LEFT)
        thread.publish(departed)
    finally:
        assert thread.stop(TIMEOUT)
    assert read_leases(world.paths.leases)[node.member.node].member == departed
    assert read_state(world.backend).round == 1
