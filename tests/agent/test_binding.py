"""What an agent says of the processors and GPUs that its workers have."""

import os

import pytest

from hpcelastic.agent.binding import binding, ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({0}, "0"),
        ({0, 1}, "0-1"),
        ({3, 1, 2, 0}, "0-3"),
        ({0, 2, 4}, "0,2,4"),
        ({8, 0, 1, 2, 10, 11}, "0-2,8,10-11"),
        (set(), ""),
    ],
    ids=str,
)
def test_processors_are_written_as_slurm_does(numbers: set[int], text: str) -> None:
    assert ranges(numbers) == text


def test_processors_are_those_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert binding({}) == {"cpus": str(min(before))}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("gpus", ["", "2,3", "GPU-8932f937"])
def test_gpus_are_told_as_they_were_given(gpus: str) -> None:
    assert binding({"CUDA_VISIBLE_DEVICES": gpus})["gpus"] == gpus
