"""Resolution of SLURM's signals."""

import pytest

from hpcelastic.protocol.state import Notice
from hpcelastic.slurm.signal_resolution import (
    CHECKPOINT,
    JobInfo,
    Policy,
    resolve,
    resolve_without_answer,
    subtract_margin,
)

POLICY = Policy(warning=120.0, stop_grace=30.0, requeue=True, beyond_limit=True)
STAYS = Policy(warning=120.0, stop_grace=30.0, requeue=False, beyond_limit=False)
DAY = 86_400.0


def job(state: str = "RUNNING", left: float | None = DAY, preempted: bool = False, requeue: bool = True) -> JobInfo:
    return JobInfo(state, left, preempted, requeue)


@pytest.mark.parametrize(
    ("info", "user_signal", "policy", "expected"),
    [
        pytest.param(
            job(left=20, preempted=True), False, POLICY, Notice("SLURM preempts the job", 18.0, "preemption"), id="TERM"
        ),
        pytest.param(
            job(left=20, preempted=True), True, POLICY, Notice("SLURM preempts the job", 18.0, "preemption"), id="USR2"
        ),
        pytest.param(
            job(left=None, preempted=True),
            False,
            POLICY,
            Notice("SLURM preempts the job", 0.0, "preemption"),
            id="preempted, end of grace unknown",
        ),
        pytest.param(
            job(left=20, preempted=True, requeue=False),
            False,
            POLICY,
            Notice("SLURM preempts the job", 18.0),
            id="preempted, SLURM must not requeue it",
        ),
        pytest.param(
            job(left=20, preempted=True),
            False,
            STAYS,
            Notice("SLURM preempts the job", 18.0, "never"),
            id="preempted, requeue forbidden",
        ),
        pytest.param(job(left=130), True, POLICY, Notice("the time limit is near", 120.0, "limit"), id="time limit"),
        pytest.param(job(left=210), True, POLICY, Notice("the time limit is near", 200.0, "limit"), id="sent early"),
        pytest.param(job(left=211), True, POLICY, CHECKPOINT, id="by hand, long before the limit"),
        pytest.param(job(left=None), True, POLICY, CHECKPOINT, id="by hand, no limit known"),
        pytest.param(
            job(left=130), True, STAYS, Notice("the time limit is near", 120.0), id="time limit, no more time"
        ),
        pytest.param(
            job(left=130, requeue=False), True, POLICY, Notice("the time limit is near", 120.0), id="limit, no requeue"
        ),
        pytest.param(job(left=130), False, POLICY, Notice("SIGTERM", 30.0), id="TERM near the limit"),
        pytest.param(job(), False, POLICY, Notice("SIGTERM", 30.0), id="TERM by hand"),
        pytest.param(
            job("CANCELLED"), False, POLICY, Notice("SLURM ends the job (cancelled)", 30.0), id="scancel, TERM"
        ),
        pytest.param(
            job("COMPLETING", preempted=True),
            True,
            POLICY,
            Notice("SLURM ends the job (completing)", 30.0),
            id="completing",
        ),
        pytest.param(
            job("PENDING"), False, POLICY, Notice("SLURM ends the job (pending)", 30.0), id="requeued by a user"
        ),
        pytest.param(job("SIGNALING"), True, POLICY, CHECKPOINT, id="while SLURM signals it"),
    ],
)
def test_the_meaning_of_a_signal(info: JobInfo, user_signal: bool, policy: Policy, expected: Notice | str) -> None:
    assert resolve(info, user_signal, policy) == expected


_WHY = "SIGTERM, and SLURM did not answer why"


@pytest.mark.parametrize(
    ("user_signal", "policy", "waited", "expected"),
    [
        pytest.param(True, POLICY, 0.0, Notice("SLURM warns the job of its end", 110.0, "limit"), id="USR2"),
        pytest.param(
            True, POLICY, 40.0, Notice("SLURM warns the job of its end", 72.0, "limit"), id="USR2, some time ago"
        ),
        pytest.param(
            True, POLICY, 130.0, Notice("SLURM warns the job of its end", 0.0, "limit"), id="USR2, too long ago"
        ),
        pytest.param(
            True,
            STAYS,
            0.0,
            Notice("SLURM warns the job of its end", 110.0, ""),
            id="USR2, no more time",
        ),
        pytest.param(False, POLICY, 40.0, Notice(_WHY, 30.0, "unknown"), id="TERM"),
    ],
)
def test_the_likeliest_meaning_if_slurm_does_not_answer(
    user_signal: bool, policy: Policy, waited: float, expected: Notice
) -> None:
    assert resolve_without_answer(user_signal, policy, waited) == expected


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(None, 0.0), (-5.0, 0.0), (0.0, 0.0), (1.0, 0.0), (5.0, 3.0), (20.0, 18.0), (60.0, 54.0), (600.0, 590.0)],
)
def test_a_part_of_the_time_is_for_the_departure(seconds: float | None, left: float) -> None:
    assert subtract_margin(seconds) == left
