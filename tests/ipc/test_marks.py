"""Progress marks: their order, their loss, and the death of their writer at any moment."""

import mmap
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from hpcelastic.ipc import marks
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.mark_kinds import loss_bits
from hpcelastic.ipc.marks import CAPACITY, RING_SIZE, MarkKind, MarkRing, Source
from hpcelastic.ipc.round_totals import LOSSES
from tests.agent.processes import eventually

WRITE_FOR_EVER = """
import sys
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
ring, step = ControlPage.open(sys.argv[1]).marks(1), 0
while True:
    ring.write(3, MarkKind.STEP, step := step + 1)
"""


WRITE_WITHOUT_SYSTEM_CALLS = """
import ctypes, gc, mmap, os, struct
from hpcelastic.ipc.marks import RING_SIZE, MarkKind, MarkRing
ring = MarkRing(mmap.mmap(-1, RING_SIZE), 0)
libc = ctypes.CDLL(None)
gc.disable()
for step in range(1, 100):
    ring.write(3, MarkKind.STEP, step)
# A filter of system calls, see seccomp(2): write is allowed, all others kill the process.
write = {"x86_64": 1, "aarch64": 64}[os.uname().machine]
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, write), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, program, 0, 0) == 0
for step in range(100, 10000):
    ring.write(3, MarkKind.STEP, step)
os.write(1, str(ring.newest(3).value).encode())
"""


@pytest.fixture
def ring() -> MarkRing:
    return MarkRing(mmap.mmap(-1, 64 + RING_SIZE), 64)


def demand(ring: MarkRing, round: int = 3) -> None:
    """Let the worker demand an older state."""
    ring.write(round, MarkKind.STEP, 6)
    ring.write(round, MarkKind.POISONED, 5)
    ring.write(round, MarkKind.ROLLBACK, 2)


def test_a_demand_for_an_older_state_is_found_behind_other_marks(ring: MarkRing) -> None:
    """The check may be in a phase, and what the script does in a ``finally`` may leave marks too."""
    assert ring.rollback(3) is None
    demand(ring)
    assert ring.rollback(3) == (5, 2)
    for kind in (MarkKind.PHASE_ENDED, MarkKind.LOSS, MarkKind.TOTAL):
        ring.write(3, kind, 0)
        assert ring.rollback(3) == (5, 2)
    assert ring.rollback(2) is None and ring.rollback(4) is None


@pytest.mark.parametrize("kind", [MarkKind.STEP, MarkKind.RESTORED])
def test_a_demand_for_an_older_state_ends_with_the_next_step(ring: MarkRing, kind: MarkKind) -> None:
    """The script has handled the error."""
    demand(ring)
    ring.write(3, kind, 7)
    assert ring.rollback(3) is None
    demand(ring)
    assert ring.rollback(3) == (5, 2)


def test_an_older_state_is_demanded_for_one_round(ring: MarkRing) -> None:
    demand(ring)
    ring.write(4, MarkKind.RESUMED, 4)
    assert ring.rollback(4) is None


def test_marks_are_read_in_their_order(ring: MarkRing) -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ring.write(3, MarkKind.RESTORED, 40)
    ring.write(3, MarkKind.STEP, 1)
    first, second = ring.read()
    assert [(m.number, m.round, m.kind, m.value) for m in (first, second)] == [
        (1, 3, MarkKind.RESTORED, 40),
        (2, 3, MarkKind.STEP, 1),
    ]
    assert before <= first.time <= second.time <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert ring.read(after=1) == [second]
    assert ring.read(after=2) == []
    assert ring.newest(3) == second
    assert ring.newest(4) is None


def test_the_steps_of_the_training(ring: MarkRing) -> None:
    assert ring.steps(3) is None
    ring.write(3, MarkKind.RESTORED, 40)
    assert ring.steps(3) is None  # no step has begun
    ring.write(3, MarkKind.STEP, 1)
    ring.write(3, MarkKind.STEP, 2)
    ring.write(3, MarkKind.SAVED, 41)
    assert (ring.steps(3), ring.steps(4)) == (42, None)
    ring.write(4, MarkKind.STEP, 1)  # a round that begins anew
    assert (ring.steps(3), ring.steps(4)) == (None, 1)
    ring.write(4, MarkKind.RESTORED, 7)  # another state in the middle of a round
    assert ring.steps(4) == 7
    ring.write(4, MarkKind.STEP, 2)
    assert ring.steps(4) == 8


def test_a_mark_makes_no_system_call() -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_WITHOUT_SYSTEM_CALLS], stdout=subprocess.PIPE, check=False)
    assert done.stdout == b"9999"
    assert done.returncode == -signal.SIGSYS  # killed by one of the system calls that end a process


def test_only_the_newest_marks_are_read_on_request(ring: MarkRing) -> None:
    for step in range(1, 31):
        ring.write(3, MarkKind.STEP, step)
    assert [mark.value for mark in ring.read(at_most=3)] == [28, 29, 30]
    assert [mark.value for mark in ring.read(after=29, at_most=3)] == [30]


def test_the_oldest_marks_are_lost(ring: MarkRing) -> None:
    for step in range(CAPACITY + 5):
        ring.write(1, MarkKind.STEP, step)
    found = ring.read()
    assert [mark.value for mark in found] == list(range(5, CAPACITY + 5))
    assert found[-1] == ring.newest(1)


@pytest.mark.parametrize("offset", range(0, marks._MARK.size, 8))
def test_a_mark_that_is_half_written_is_skipped(ring: MarkRing, offset: int) -> None:
    """A writer is killed, or writes at this moment, where the newest marks would be."""
    for step in (1, 2):
        ring.write(1, MarkKind.STEP, step)
    place = ring._place(2) + offset
    ring._memory[place : place + 8] = os.urandom(8)
    newest = ring.newest(1)
    assert newest is not None and newest.value == 1
    assert [mark.value for mark in ring.read()] == [1]
    ring.write(1, MarkKind.STEP, 3)
    assert [mark.value for mark in ring.read()] == [1, 3]


@pytest.mark.parametrize(
    ("marks", "has_step"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([(3, MarkKind.RESTORED, 40), (3, MarkKind.STEP, 1)], False, id="the first step has begun"),
        pytest.param([(3, MarkKind.STEP, 1), (3, MarkKind.STEP, 2)], True, id="the second step has begun"),
        pytest.param([(3, MarkKind.SAVED, 0)], True, id="saved"),
        pytest.param([(2, MarkKind.STEP, 2), (2, MarkKind.SAVED, 1)], False, id="in another round"),
    ],
)
def test_a_complete_step_is_known(ring: MarkRing, marks: list[tuple[int, MarkKind, int]], has_step: bool) -> None:
    for mark in marks:
        ring.write(*mark)
    assert ring.has_step(3) is has_step


def test_seats_have_marks_of_their_own() -> None:
    page = ControlPage.make(3)
    for seat in range(3):
        page.marks(seat).write(1, MarkKind.STEP, seat)
    assert [[mark.value for mark in page.marks(seat).read()] for seat in range(3)] == [[0], [1], [2]]
    assert page.progress() is None
    assert not page.polled(1)
    page.close()


def test_the_marks_of_a_killed_worker_stay() -> None:
    page = ControlPage.make(2)
    program = [sys.executable, "-c", WRITE_FOR_EVER, page.name]
    worker = subprocess.Popen(program, cwd=Path(marks.__file__).parents[2])
    try:
        assert eventually(lambda: page.marks(1).newest(3) is not None)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    found = page.marks(1).read()
    assert len(found) >= min(CAPACITY, found[-1].value) - 1
    assert [mark.number for mark in found] == [mark.value for mark in found]
    assert page.marks(0).read() == []
    page.close()


class Clock:
    """A clock in seconds, for the times of marks."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(time, "clock_gettime_ns", lambda clock: round(self.now * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def write(ring: MarkRing, clock: Clock, marks: list[tuple[float, MarkKind, int]]) -> None:
    """Write marks of round 3 at the given times."""
    for clock.now, kind, value in marks:
        ring.write(3, kind, value)


def test_the_totals_of_a_round(ring: MarkRing, clock: Clock) -> None:
    ring.write(2, MarkKind.SAVED, 7)
    begin = [
        (101.0, MarkKind.ENTERED, 3),
        (102.0, MarkKind.GROUP, 3),
        (102.5, MarkKind.GROUP, 3),  # a second group
        (103.0, MarkKind.SOURCE, Source.PEER),
        (103.0, MarkKind.RESTORED, 40),
    ]
    steps = [(104.0 + step, MarkKind.STEP, step) for step in range(1, 11)]
    write(ring, clock, [*begin, *steps, (114.5, MarkKind.SAVED, 50)])
    totals = ring.totals(3)
    assert totals is not None
    assert (totals.steps, totals.before, totals.source, totals.saved_step) == (10, 40, Source.PEER, 50)
    times = (totals.entered, totals.group, totals.restored, totals.last_step, totals.saved)
    assert times == tuple(round(each * 1e9) for each in (101, 102, 103, 114, 114.5))
    assert totals.samples == tuple(round(each * 1e9) for each in (105, 106, 108, 112))
    assert ring.totals(2) is None


def test_phases_count_from_the_first_beginning_to_the_last_end(ring: MarkRing, clock: Clock) -> None:
    write(
        ring,
        clock,
        [
            (110.0, MarkKind.SAVING, 0),
            (111.0, MarkKind.PHASE_ENDED, 0),
            (120.0, MarkKind.EVALUATING, 0),
            (121.0, MarkKind.SAVING, 0),  # the best state is saved during the evaluation
            (122.0, MarkKind.PHASE_ENDED, 0),
            (125.0, MarkKind.PHASE_ENDED, 0),
            (130.0, MarkKind.COMPILING, 0),
            (132.0, MarkKind.STEP, 1),  # a phase ends with a step, too
            (133.0, MarkKind.PHASE_ENDED, 0),
            (140.0, MarkKind.SAVING, 0),
        ],
    )
    clock.now = 144.0
    totals = ring.totals(3)
    assert totals is not None
    assert (totals.saving, totals.other, totals.compiling) == (5e9, 5e9, 2e9)
    assert totals.saves == 1  # the second one has not ended


def test_a_round_without_marks_has_no_totals(ring: MarkRing) -> None:
    assert ring.totals(0) is None
    ring.write(3, MarkKind.ENTERED, 3)
    totals = ring.totals(3)
    assert totals is not None
    assert (totals.steps, totals.before, totals.samples, totals.source) == (0, None, (), Source.UNKNOWN)


@pytest.mark.parametrize("count", [0, 1, 2, LOSSES - 1, LOSSES, LOSSES + 1, 10 * LOSSES + 7])
def test_losses_are_chosen_evenly_and_the_newest_one_is_kept(ring: MarkRing, count: int) -> None:
    ring.write(3, MarkKind.RESTORED, 100)
    ring.write(3, MarkKind.TOTAL, 5000)
    for step in range(1, count + 1):
        ring.write(3, MarkKind.STEP, step)
        ring.write(3, MarkKind.LOSS, loss_bits(1 / step))
    totals = ring.totals(3)
    assert totals is not None and totals.total == 5000
    steps = [step - 100 for step, _ in totals.losses]
    assert [loss for _, loss in totals.losses] == [1 / step for step in steps]
    assert len(steps) <= LOSSES + 1 and steps[-1:] == ([count] if count else [])
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert len(gaps) <= 1 and (not count or steps[0] == 1)
    if count > LOSSES:
        assert len(steps) > LOSSES / 2
