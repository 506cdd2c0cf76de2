"""The times for which a node holds its lease, when the lease changes its duration."""

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.rendezvous.lease_keeper import LeaseKeeper

MEMBER = Member("n1@0-ab", NodeState.READY, 0, 1, "h", 0)


class Owner:
    """A lease whose renewals take ``takes`` seconds and fail if ``fails``, and all that its keeper has reported."""

    def __init__(self) -> None:
        self.now, self.takes, self.fails = 100.0, 0.0, False
        self.log: list[tuple[str, float]] = []
        self.keeper = LeaseKeeper(self, RendezvousSettings(), lambda: self.now, self._held_until)

    def _held_until(self, end: float) -> None:
        self.log.append(("held until", end))

    def renew(self, member: Member, duration: float | None = None) -> None:
        assert duration is not None
        self.log.append(("published", duration))
        self.now += self.takes
        if self.fails:
            raise StoreError("no answer")

    def renewal(self, seconds: float) -> list[tuple[str, float]]:
        """Renew with this duration a second later, and return what was reported."""
        self.now, self.log = self.now + 1.0, []
        self.keeper.duration.seconds = seconds
        self.keeper.renew(MEMBER)
        return self.log


def test_a_shorter_lease_holds_before_it_is_published() -> None:
    owner = Owner()
    owner.renewal(10.0)
    assert owner.renewal(4.0) == [("held until", 106.0), ("published", 4.0), ("held until", 106.0)]


def test_a_longer_lease_holds_only_when_it_is_published() -> None:
    owner = Owner()
    owner.renewal(4.0)
    assert owner.renewal(10.0) == [("published", 10.0), ("held until", 112.0)]


def test_a_shorter_lease_that_may_have_been_published_stays_short() -> None:
    owner = Owner()
    owner.renewal(10.0)
    owner.fails = True
    with pytest.raises(StoreError):
        owner.renewal(4.0)
    with pytest.raises(StoreError):
        owner.renewal(10.0)
    assert owner.keeper.held.end == 106.0


def test_a_lease_that_expires_before_its_shorter_renewal_has_ended_is_not_settled() -> None:
    owner = Owner()
    owner.renewal(10.0)
    owner.takes = 4.0
    owner.renewal(4.0)
    assert not owner.keeper.settled


def test_a_renewal_is_late_from_the_time_at_which_it_was_due() -> None:
    owner = Owner()
    owner.renewal(10.0)
    assert owner.keeper.duration.lateness == 0.0
    owner.takes = 0.25
    owner.renewal(10.0)
    late = 1.0 - 2.0 / 3 + 0.25
    assert owner.keeper.duration.lateness == pytest.approx(late), "it was due after two thirds of a second"


def test_a_renewal_that_another_node_makes_due_is_not_late() -> None:
    owner = Owner()
    owner.keeper.set_alone(True)
    owner.keeper.renew(MEMBER)
    owner.now += 3.0
    owner.keeper.set_alone(False)
    assert owner.keeper.until_renewal() < 0
    owner.keeper.renew(MEMBER)
    assert owner.keeper.duration.lateness == 0.0
