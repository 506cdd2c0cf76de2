"""The partitions of a cluster in the output of sinfo."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.cli import main
from hpcelastic.slurm.partitions import Partition, parse_partitions
from tests.cluster import SlurmCluster
from tests.slurm.test_submission import login

LINES = {
    "the default partition": ("batch*|up|4|64|256000|1-00:00:00|(null)", [("batch", 4, 64, 256000, 0, True)]),
    "GPUs of a type": ("gpu|up|2|128|1031000|infinite|gpu:a100:8(S:0-1)", [("gpu", 2, 128, 1031000, 8, False)]),
    "GPUs without a type": ("gpu|up|2|128|1031000|infinite|gpu:4", [("gpu", 2, 128, 1031000, 4, False)]),
    "GPUs of two types": ("gpu|up|1|9|9|1:00|gpu:a100:4,gpu:v100:2,nvme:1", [("gpu", 1, 9, 9, 6, False)]),
    "nodes that differ": ("all|up|9|64+|256000+|infinite|(null)", [("all", 9, 64, 256000, 0, False)]),
    "a partition that accepts no jobs": ("old|down|4|64|256000|infinite|(null)", []),
    "several kinds of nodes": (
        "all*|up|2|8|8000|infinite|(null)\nall*|up|6|64|64000|infinite|gpu:2\ntest|up|1|8|8000|30:00|(null)",
        [("all", 8, 64, 64000, 2, True), ("test", 1, 8, 8000, 0, False)],
    ),
    "something else": ("sinfo: warning\n", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "expected"), LINES.values(), ids=LINES)
def test_partitions(text: str, expected: list[tuple[object, ...]]) -> None:
    found = parse_partitions(text.splitlines())
    assert [(one.name, one.nodes, one.cpus, one.memory, one.gpus, one.default) for one in found] == expected


def test_the_time_limit() -> None:
    (found,) = parse_partitions(["gpu|up|2|128|1031000|2-12:00:00|(null)"])
    assert found == Partition("gpu", 2, 128, 1031000, 0, "2-12:00:00")


@pytest.fixture
def site(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SlurmCluster]:
    login(cluster, monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield cluster


def test_the_first_files_name_the_partitions_of_the_cluster(
    site: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init"]) == 0
    assert "partition: " in capsys.readouterr().out
    text = (tmp_path / "job.yaml").read_text()
    (name,) = [line.split()[1] for line in text.splitlines() if line.startswith("  partition: ")]
    assert f"#   {name} (default): " in text
    assert f"#SBATCH --partition={name}\n" in (tmp_path / "job.sbatch").read_text()
    assert main(["init", "--force", "--partition", "nothing"]) == 2
    assert f"--partition is nothing, which accepts no jobs; SLURM has: {name}" in capsys.readouterr().err
