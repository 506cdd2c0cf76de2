"""The restart budget: what a failure costs, and what returns."""

from dataclasses import replace

import pytest

from hpcelastic.protocol.budget import has_crash_loop, identity, reason_to_give_up, refilled
from hpcelastic.protocol.findings import RollbackDemand
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Cause, Failure, Phase, State

DAY = 86400.0


def run(maximum: int = 3, interval: float = DAY, steps: int = 1000) -> State:
    restarts = RestartSettings(maximum, interval, steps)
    return State("r", Settings(NodeRange(1, 1), RendezvousSettings(), restarts))


def fails(state: State, day: float, progress: int = -1) -> State:
    """Return the state after a failure on a day since the beginning of the run."""
    failure = Failure(1, "a@1", 0, 0, 1, "error", timestamp=1.7e9 + day * DAY)
    state = refilled(state, failure, progress)
    return replace(state, spent={Cause.WORKER.value: state.spent.get(Cause.WORKER.value, 0) + 1})


def after(state: State, *failures: tuple[float, int] | float) -> list[int]:
    """Return the spent restarts after each of the failures: its day, or its day and the saved steps."""
    found = []
    for failure in failures:
        day, progress = failure if isinstance(failure, tuple) else (failure, -1)
        state = fails(state, day, progress)
        found.append(state.restarts)
    return found


def test_failures_within_a_day_add_up() -> None:
    assert after(run(), 0.0, 0.2, 0.4, 0.9) == [1, 2, 3, 4]


def test_one_restart_returns_each_day() -> None:
    assert after(run(), 0.0, 0.1, 0.2, 2.3) == [1, 2, 3, 2]


def test_a_failure_a_day_can_go_on_for_ever() -> None:
    assert after(run(), *(float(day) for day in range(90))) == [1] * 90
    assert max(after(run(), *(day * 1.01 for day in range(90)))) == 1


def test_the_rest_of_a_day_counts_for_the_next_failure() -> None:
    """A failure every 16 hours: three in two days, of which two return."""
    assert after(run(9), *(index * 2 / 3 for index in range(9))) == [1, 2, 2, 2, 3, 3, 3, 4, 4]


def test_no_more_returns_than_was_spent() -> None:
    assert after(run(), 0.0, 50.0, 50.1, 50.2) == [1, 1, 2, 3]


@pytest.mark.parametrize(("saved", "spent"), [(999, 3), (1000, 2), (1999, 2), (2000, 1), (90000, 1)])
def test_saved_steps_return_restarts(saved: int, spent: int) -> None:
    assert after(run(), (0.0, 0), (0.1, 0), (0.2, saved))[-1] == spent


def test_only_steps_beyond_the_last_failure_count() -> None:
    assert after(run(9), (0.0, 5000), (0.01, 5999), (0.02, 6900), (0.03, 7800)) == [1, 2, 3, 4]
    assert after(run(9), (0.0, 5000), (0.01, 4000), (0.02, 5900)) == [1, 2, 3]  # a checkpoint was lost


def test_nothing_returns_if_that_is_switched_off() -> None:
    state = run(interval=0.0, steps=0)
    assert after(state, (0.0, 0), (9.0, 9000), (99.0, 99000)) == [1, 2, 3]


def test_a_clock_that_was_wrong_does_not_stop_the_refill() -> None:
    assert after(run(), 0.0, 3650.0, 0.1, 1.2) == [1, 1, 2, 2]


def test_the_refill_is_never_more_than_the_rate() -> None:
    for distance in (0.07, 0.3, 0.61, 0.99, 1.3, 3.7):
        state, first = run(10**6), 0.0
        for number in range(1, 60):
            day = (number + number % 3 * 0.3) * distance  # failures at irregular times
            first = first or day
            state = fails(state, day)
            assert number - state.restarts <= int(day - first + 1e-6)
            assert 1 <= state.restarts <= number


ERROR = Failure(
    1,
    "a@1",
    3,
    1,
    1,
    "ValueError: bad sample (exit status 1)",
    'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n    main()\n'
    '  File "/home/me/data.py", line 88, in read\n    raise ValueError\nValueError: bad sample\n',
    timestamp=1.7e9,
    step=150,
)


DUMP = 'Fatal Python error: Segmentation fault\n  File "/home/me/train.py", line 9 in step'
"""The end of the log of a worker with Python's faulthandler."""


def failed(*failures: Failure, identical: int = 2) -> State:
    """Return the state after the failures, one in each round."""
    state = run(9)
    restarts = replace(state.settings.restarts, identical=identical)
    state = replace(state, settings=replace(state.settings, restarts=restarts))
    for number, failure in enumerate(failures, 1):
        state = refilled(state, failure, -1)
        state = replace(state, spent={Cause.WORKER.value: number}, failures=(failure,))
    return replace(state, phase=Phase.JOINING if reason_to_give_up(state) is None else Phase.FAILED)


def test_the_same_error_in_the_same_step_is_a_crash_loop() -> None:
    assert identity(ERROR) == "step 150, /home/me/data.py:88: ValueError: bad sample (exit status 1)"
    assert not has_crash_loop(failed(ERROR)) and reason_to_give_up(failed(ERROR)) is None
    state = failed(ERROR, replace(ERROR, rank=0, node="b@1", timestamp=1.7e9 + 60))  # on whatever rank
    assert has_crash_loop(state)
    assert reason_to_give_up(state) == (
        "rank 0 failed on b: ValueError: bad sample (exit status 1); the same error in the same step, 2 times in a row "
        "(restarts.identical): a restart cannot help"
    )


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(ERROR, step=151), id="another step"),
        pytest.param(replace(ERROR, message="ValueError: another (exit status 1)"), id="another message"),
        pytest.param(replace(ERROR, traceback=ERROR.traceback.replace("88", "89")), id="another place"),
    ],
)
def test_another_failure_is_no_repetition(other: Failure) -> None:
    assert not has_crash_loop(failed(ERROR, other))
    assert not has_crash_loop(failed(ERROR, other, ERROR))
    assert has_crash_loop(failed(ERROR, other, ERROR, ERROR))


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(replace(ERROR, step=-1), id="the step is unknown"),
        pytest.param(replace(ERROR, traceback="", exit_code=-9, message="killed by SIGKILL"), id="a signal"),
        pytest.param(replace(ERROR, traceback=DUMP, exit_code=-11), id="a signal, with a dump of the stack"),
        pytest.param(replace(ERROR, collective=True), id="the failure of a collective"),
        pytest.param(replace(ERROR, rollback=RollbackDemand(149, 100)), id="training returns to an older state"),
        pytest.param(replace(ERROR, message="OSError: [Errno 28] No space left"), id="the operating system"),
        pytest.param(replace(ERROR, message="RuntimeError: [gloo] Connection closed by peer"), id="a peer"),
    ],
)
def test_a_failure_that_a_restart_may_cure_is_no_crash_loop(failure: Failure) -> None:
    assert not has_crash_loop(failed(failure, failure, failure))


def test_the_number_of_repetitions_is_a_setting() -> None:
    assert not has_crash_loop(failed(ERROR, ERROR, identical=3))
    assert has_crash_loop(failed(ERROR, ERROR, ERROR, identical=3))
    assert not has_crash_loop(failed(*[ERROR] * 9, identical=0))


@pytest.mark.parametrize(
    ("maximum", "spent", "reason"),
    [
        (2, 2, None),
        (2, 3, "a worker failed (restarts.max is 2, all spent)"),
        (0, 0, None),
        (0, 1, "a worker failed (restarts.max is 0)"),
    ],
)
def test_the_run_ends_once_more_is_spent_than_the_budget(maximum: int, spent: int, reason: str | None) -> None:
    assert reason_to_give_up(replace(run(maximum), spent={Cause.WORKER.value: spent})) == reason


def test_a_failure_without_a_report_changes_nothing() -> None:
    assert refilled(run(), None, 5) == run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((3, -1.0, 0), r"restarts.refill_interval is -1.0; it must be 0 seconds or more"),
        ((3, float("inf"), 0), r"restarts.refill_interval is inf"),
        ((3, 0.0, -5), r"restarts.refill_steps is -5; it must be 0 or more"),
        ((3, 0.0, 0, 1), r"restarts.identical is 1; it must be 2 or more, or 0 for any number"),
    ],
)
def test_wrong_settings(settings: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestartSettings(*settings)  # type: ignore[arg-type]  # one of them is wrong
