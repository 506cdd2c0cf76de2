"""The newest state that a node knows, read from the register or brought by a notification."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.changes import difference, pack
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.lease_duration import HeldLease
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.rendezvous.known import KnownState
from hpcelastic.rendezvous.run import Reading
from hpcelastic.storage.register import Version

MEMBER = Participant("a@0-1", 1, "10.0.0.1", 4000)
JOINING = State("r", Settings())
RUNNING = replace(JOINING, phase=Phase.RUNNING, round=1, participants=(MEMBER,), reason="round 1 formed")
ENDED = replace(RUNNING, phase=Phase.JOINING, reason="a was lost")


NOTHING = Reading(0, State("", Settings()), float("-inf"))


class FakeRegister:
    """A register in memory that counts its readings."""

    where = "memory"

    def __init__(self, *states: State) -> None:
        self.states, self.readings, self.opened = list(states), 0, 0

    def read(self) -> Version:
        self.readings += 1
        return Version(len(self.states), encode(self.states[-1]))

    def open(self, number: int) -> Version | None:
        self.opened += 1
        return Version(number, encode(self.states[number - 1])) if number <= len(self.states) else None

    def assume(self, number: int) -> None: ...


class Knowing:
    """What a node knows that has read version 1 at time 1, and whose lease ends at time 10."""

    def __init__(self, first: Reading = NOTHING) -> None:
        self.now, self.settled_at, self.end = 1.0, 0.0, 10.0
        self.register = FakeRegister(JOINING)
        self.known = KnownState(self.register, first, lambda: self.now)  # type: ignore[arg-type]
        assert self.read() == (1, JOINING)

    def read(self) -> tuple[int, State]:
        return self.known.read(HeldLease(0.0, self.end), self.settled_at)


def change(before: State, after: State) -> bytes:
    return pack(difference(before, after))


def test_a_change_replaces_a_reading_once() -> None:
    it = Knowing()
    it.register.states.append(RUNNING)
    it.known.offer(2, change(JOINING, RUNNING))
    assert it.read() == (2, RUNNING) and it.register.readings == 1
    assert it.read() == (2, RUNNING) and it.register.readings == 2


def test_changes_follow_each_other_without_a_reading() -> None:
    it = Knowing()
    for number, before, after in ((2, JOINING, RUNNING), (3, RUNNING, ENDED)):
        it.known.offer(number, change(before, after))
        assert it.read() == (number, after)
    assert it.register.readings == 1


def test_changes_that_arrive_together_are_all_used() -> None:
    it = Knowing()
    it.known.offer(3, change(RUNNING, ENDED))
    it.known.offer(2, change(JOINING, RUNNING))
    assert it.read() == (3, ENDED) and it.register.readings == 1


def test_after_a_missing_change_the_register_is_read() -> None:
    it = Knowing()
    it.register.states += [RUNNING, ENDED, RUNNING]
    it.known.offer(2, change(JOINING, RUNNING))
    it.known.offer(4, change(ENDED, RUNNING))
    assert it.read() == (4, RUNNING) and (it.register.opened, it.register.readings) == (1, 1)


def test_a_version_of_which_no_change_is_known_is_opened() -> None:
    it = Knowing()
    it.register.states.append(RUNNING)
    it.known.offer(2, b"")
    assert it.read() == (2, RUNNING) and (it.register.opened, it.register.readings) == (1, 1)


def test_instead_of_a_change_that_is_not_valid_the_version_is_opened() -> None:
    it = Knowing()
    it.register.states += [RUNNING, ENDED]
    it.known.offer(2, b"garbage")
    assert it.read() == (2, RUNNING) and it.register.readings == 1


def test_after_a_version_that_cannot_be_opened_the_register_is_read() -> None:
    it = Knowing()
    it.known.offer(7, b"")
    assert it.read() == (1, JOINING) and (it.register.opened, it.register.readings) == (1, 2)


def test_what_was_read_a_moment_ago_is_not_read_again() -> None:
    it = Knowing(Reading(1, JOINING, 0.5))
    assert it.register.readings == 0
    it.register.states.append(RUNNING)
    it.known.offer(2, change(JOINING, RUNNING))
    assert it.read() == (2, RUNNING) and it.register.readings == 0
    assert it.read() == (2, RUNNING) and it.register.readings == 1


def test_a_version_that_is_named_before_the_first_reading_is_opened() -> None:
    register = FakeRegister(JOINING, RUNNING)
    known = KnownState(register, Reading(1, JOINING, 0.5), lambda: 1.0)  # type: ignore[arg-type]
    known.offer(2, b"")
    assert known.read(HeldLease(0.0, 10.0), float("-inf")) == (2, RUNNING)
    assert (register.opened, register.readings) == (1, 0)


def test_what_was_read_long_ago_is_read_again() -> None:
    assert Knowing(Reading(1, JOINING, -9.0)).register.readings == 1


def test_a_version_that_a_late_listing_shows_is_not_returned_again() -> None:
    it = Knowing()
    it.known.offer(2, change(JOINING, RUNNING))
    it.read()
    assert it.read() == (2, RUNNING), "the register still shows version 1"


@pytest.mark.parametrize(
    ("number", "data", "settled_at", "end"),
    [
        pytest.param(3, change(RUNNING, ENDED), 0.0, 10.0, id="a version between is missing"),
        pytest.param(1, change(JOINING, RUNNING), 0.0, 10.0, id="a version that is known"),
        pytest.param(
            2, change(JOINING, RUNNING), 1.5, 10.0, id="others may not have seen the lease at the last reading"
        ),
        pytest.param(2, change(JOINING, RUNNING), 0.0, 2.0, id="the lease has expired"),
    ],
)
def test_otherwise_the_register_is_read(number: int, data: bytes, settled_at: float, end: float) -> None:
    it = Knowing()
    it.register.states += [RUNNING, ENDED]
    it.now, it.settled_at, it.end = 2.0, settled_at, end
    it.known.offer(number, data)
    assert it.read() == (3, ENDED)


def test_a_version_that_was_read_elsewhere_is_returned_once_without_a_reading() -> None:
    it = Knowing()
    it.register.states.append(RUNNING)
    it.known.adopt(Version(2, encode(RUNNING)))
    assert it.read() == (2, RUNNING) and it.register.readings == 1
    it.known.adopt(Version(1, encode(JOINING)))
    assert it.read() == (2, RUNNING) and it.register.readings == 2, "an older version is not adopted"


def test_a_version_is_announced_until_it_is_offered() -> None:
    known = Knowing().known
    known.announced = 3
    known.offer(2, b"")
    assert known.announced == 3
    known.offer(3, b"")
    assert known.announced == 0


def test_a_version_that_this_node_has_written_is_returned_once_without_a_reading() -> None:
    it = Knowing()
    it.register.states.append(RUNNING)
    it.known.record(2, RUNNING)
    assert it.read() == (2, RUNNING) and it.register.readings == 1
    assert it.read() == (2, RUNNING) and it.register.readings == 2
