"""The report of an agent on the processors and GPUs of its workers."""

import os
from pathlib import Path

import pytest

from hpcelastic.agent.binding import binding, cpu_affinity, format_ranges
from hpcelastic.agent.settings import Entrypoint
from tests.agent.starting import node


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
def test_processors_are_written_like_slurms(numbers: set[int], text: str) -> None:
    assert format_ranges(numbers) == text


def test_processors_are_those_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert binding({}) == {"cpus": str(min(before))}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("gpus", ["", "2,3", "GPU-8932f937"])
def test_gpus_are_reported_as_they_were_given(gpus: str) -> None:
    assert binding({"CUDA_VISIBLE_DEVICES": gpus})["gpus"] == gpus


def test_only_processes_started_in_the_block_are_bound() -> None:
    before = os.sched_getaffinity(0)
    with cpu_affinity({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with cpu_affinity(()):
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("preload", [(), ("json",)], ids=["fresh", "forked"])
def test_each_worker_is_bound_before_its_first_line(preload: tuple[str, ...], tmp_path: Path) -> None:
    some = sorted(os.sched_getaffinity(0))
    script = tmp_path / "say.py"
    script.write_text("import os\nprint(*sorted(os.sched_getaffinity(0)))\n")
    with node(tmp_path, Entrypoint(script=str(script)), preload, workers=3) as here:
        here.processors = ({some[0]}, {some[-1]}, ())
        assert here.run(3) == [0, 0, 0]
        assert [here.log("out", rank) for rank in range(3)] == [
            f"{some[0]}\n",
            f"{some[-1]}\n",
            " ".join(map(str, some)) + "\n",
        ]
