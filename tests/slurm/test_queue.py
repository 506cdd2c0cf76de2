"""The capacity of a run from the jobs in SLURM's queue."""

import pytest

from hpcelastic.slurm.queue import Capacity, QueuedJob, capacity_of


def one(
    id: int, state: str = "RUNNING", nodes: int = 1, *, array: int = 0, task: str = "", restarts: int = 0
) -> QueuedJob:
    return QueuedJob(str(id), str(array or id), task, state, nodes, restarts, "None")


@pytest.mark.parametrize(
    ("queue", "departed", "expected"),
    [
        pytest.param([], {}, Capacity(0, 0, ()), id="no job"),
        pytest.param([one(7, nodes=4)], {}, Capacity(4, 0, ()), id="an allocation"),
        pytest.param([one(7, nodes=4)], {"7.0": 1}, Capacity(3, 0, ()), id="one of its agents has left"),
        pytest.param([one(7, nodes=4, restarts=1)], {"7.0": 4}, Capacity(4, 0, ()), id="requeued since"),
        pytest.param([one(7, "PENDING", nodes=2)], {"7.0": 2}, Capacity(0, 2, ()), id="pending after a requeue"),
        pytest.param([one(7, "COMPLETING", nodes=2)], {}, Capacity(0, 0, ()), id="completing"),
        pytest.param(
            [
                one(9, "PENDING", array=9, task="10"),
                one(9, "PENDING", array=9, task="2"),
                one(8, array=7, task="1"),
                one(7, array=7, task="0"),
            ],
            {"8.0": 1},
            Capacity(1, 2, ("9_2", "9_10")),
            id="elements",
        ),
    ],
)
def test_the_capacity_of_a_run(queue: list[QueuedJob], departed: dict[str, int], expected: Capacity) -> None:
    assert capacity_of(queue, departed) == expected
