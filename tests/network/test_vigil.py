from itertools import pairwise

import pytest

from hpcelastic.network.peers import Heard, Refused, Silent
from hpcelastic.network.vigil import HASTE, HASTY, PATIENCE, PULSE, SILENCE, SLOW, Vigil

NODE = "a@1"
TICK = 0.01


def linked(met: bool = True) -> Vigil:
    vigil = Vigil(NODE, 0.0)
    if met:
        vigil.answered()
    assert vigil.link(0.0) is None
    return vigil


def broken(met: bool = True) -> Vigil:
    vigil = linked(met)
    vigil.lose(0.0)
    return vigil


def refusing(vigil: Vigil, since: float, until: float) -> list[float]:
    """When Refused is told if every call is refused."""
    told, now = [], since
    while now < until:
        if vigil.due is not None and vigil.due <= now:
            vigil.dialled(now)
            if vigil.refuse(now):
                told.append(now)
        now += TICK
    return told


def test_refused_is_told_after_several_refusals_over_a_while_and_again() -> None:
    told = refusing(broken(), 0.0, 5.0)
    assert 0.15 <= told[0] <= 0.15 + 2 * HASTE
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert gaps and all(PULSE * 0.8 <= gap <= PULSE * 2 for gap in gaps)


def test_refused_needs_three_in_a_row() -> None:
    vigil = broken()
    for now in (0.0, 0.1):
        assert vigil.refuse(now) is None
    vigil.fail()
    for now in (0.2, 0.3):
        assert vigil.refuse(now) is None
    assert vigil.refuse(0.4) == Refused(NODE)


def test_refused_needs_time() -> None:
    vigil = broken()
    assert [vigil.refuse(0.01 * step) for step in range(10)] == [None] * 10
    assert vigil.refuse(0.15) == Refused(NODE)


@pytest.mark.parametrize(
    "vigil",
    [Vigil(NODE, 0.0), broken(met=False), linked()],
    ids=["never met", "linked by its own call only", "linked"],
)
def test_a_refusal_that_proves_nothing_is_not_told(vigil: Vigil) -> None:
    assert [vigil.refuse(float(now)) for now in range(10)] == [None] * 10


def test_a_new_link_ends_a_refusal() -> None:
    vigil = broken()
    assert refusing(vigil, 0.0, 1.0)
    vigil.link(1.0)
    assert not vigil.refused
    vigil.lose(2.0)
    assert vigil.refuse(2.0) is None


def test_silence_is_told_at_every_look_and_its_end_once() -> None:
    vigil = linked()
    assert vigil.look(SILENCE) is None
    assert vigil.look(SILENCE + 0.1) == vigil.look(SILENCE + 0.6) == Silent(NODE)
    assert vigil.pulse(4.0) == Heard(NODE)
    assert vigil.pulse(4.5) is None
    assert vigil.look(4.6) is None


def test_one_never_linked_is_silent_later() -> None:
    vigil = Vigil(NODE, 0.0)
    assert vigil.look(PATIENCE) is None
    assert vigil.look(PATIENCE + 0.1) == Silent(NODE)
    assert vigil.link(4.0) == Heard(NODE)


def test_one_that_refuses_is_not_silent_as_well() -> None:
    vigil = broken()
    refusing(vigil, 0.0, 5.0)
    assert vigil.look(5.0) is None


def test_our_own_pause_is_no_silence() -> None:
    vigil = linked()
    vigil.excuse(10.0)
    assert vigil.look(11.0) is None and not vigil.lapsed(11.0)


def test_a_link_without_pulses_lapses() -> None:
    vigil = linked()
    assert not vigil.lapsed(PATIENCE)
    assert vigil.lapsed(PATIENCE + 0.1)
    vigil.lose(PATIENCE + 0.1)
    assert not vigil.lapsed(PATIENCE + 5), "there is no link to lapse"


def calls(vigil: Vigil, since: float, until: float) -> list[float]:
    """When calls begin if each comes to nothing at once."""
    begun, now = [], since
    while now < until:
        if vigil.due is not None and vigil.due <= now:
            vigil.dialled(now)
            vigil.fail()
            begun.append(now)
        now += TICK
    return begun


def test_a_broken_link_is_probed_at_once_then_in_haste_then_gently() -> None:
    begun = calls(broken(), 0.0, 10.0)
    assert begun[0] == 0.0
    assert HASTY / HASTE / 2 <= len([now for now in begun if now < HASTY]) <= HASTY / HASTE + 1
    assert 2 <= len([now for now in begun if now >= 8.0]) <= 2.0 / PULSE


def test_one_never_reached_is_called_more_and_more_rarely() -> None:
    begun = calls(Vigil(NODE, 0.0), 0.0, 20.0)
    assert len([now for now in begun if now < PATIENCE]) <= PATIENCE / PULSE + 1
    assert 1 <= len([now for now in begun if now >= 10.0]) <= 10.0 / SLOW + 1


def test_one_linked_and_met_is_not_called() -> None:
    assert linked().due is None
    assert linked(met=False).due is not None, "its port is still to be met"


def test_after_goodbye_the_next_call_waits() -> None:
    vigil = linked()
    vigil.part(1.0)
    assert vigil.due == 1.0 + PULSE


def test_the_reset_of_a_call_that_hung_brings_haste_again() -> None:
    vigil = broken()
    vigil.dialled(0.0)
    vigil.hang_up(60.0, began=0.0)
    assert vigil.due == 60.0
    assert refusing(vigil, 60.0, 61.0)[0] < 60.5


def test_resets_in_quick_succession_bring_no_haste() -> None:
    vigil = broken()
    calls(vigil, 0.0, 5.0)
    vigil.dialled(5.0)
    vigil.hang_up(5.1, began=5.0)
    assert vigil.due == 5.0 + PULSE
