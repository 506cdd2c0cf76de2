"""Jobs that request fewer GPUs or processors on a node than workers."""

from typing import Any

import pytest

from hpcelastic.config import from_mapping
from hpcelastic.config.shortages import shortages

CASES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "as many": (4, {"gpus_per_node": 4, "cpus_per_node": 4}, []),
    "not known": (4, {}, []),
    "auto": ("auto", {"gpus_per_node": 4, "cpus_per_node": 1}, []),
    "GPUs": (4, {"gpus_per_node": 2}, ["workers.per_node is 4, more than slurm.gpus_per_node, 2: a script that"]),
    "typed GPUs": (4, {"gpus_per_node": "a100:3"}, ["more than slurm.gpus_per_node, 3"]),
    "GPUs of two types": (4, {"gpus_per_node": "a100:2,v100:2"}, []),
    "processors": (4, {"cpus_per_node": 1}, ["workers.per_node is 4, more than slurm.cpus_per_node, 1: workers share"]),
    "both": (4, {"gpus_per_node": 1, "cpus_per_node": 1}, ["slurm.gpus_per_node, 1", "slurm.cpus_per_node, 1"]),
}


@pytest.mark.parametrize(("workers", "slurm", "words"), CASES.values(), ids=CASES)
def test_each_shortage_is_reported(workers: Any, slurm: dict[str, Any], words: list[str]) -> None:
    job = {"entrypoint": {"module": "json"}, "workers": {"per_node": workers}, "slurm": slurm}
    lines = shortages(from_mapping(job).config)
    assert len(lines) == len(words)
    for line, expected in zip(lines, words, strict=True):
        assert expected in line
