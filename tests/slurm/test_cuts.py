"""A cut between two nodes of a real cluster, which both still reach everything else."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.storage.events import read_event_lines
from tests.cluster import SlurmCluster

pytestmark = pytest.mark.slow

ENDED = 120.0

JOB = """\
run: {name: job}
entrypoint: {script: train.py}
nodes: 1..3
workers: {per_node: 1}
hangs: {min_limit: 2}
"""
TRAIN = """\
from pathlib import Path
import torch
import torch.distributed as dist
from hpcelastic.training import context, resumable, should_stop

torch.set_num_threads(1)

def main():
    dist.init_process_group("gloo")
    number = 0
    while not should_stop():
        done = torch.tensor([float(Path("enough").exists())])
        dist.all_reduce(done)
        dist.all_reduce(torch.ones(100_000))
        number += 1
        Path(f"step.{context().round}.{context().rank}").write_text(str(number))
        if done.item():
            break
    dist.destroy_process_group()

resumable(main)()
"""


def test_the_round_continues_without_the_fewest_nodes_that_make_it_whole(
    fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fresh_cluster(nodes=3)
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(cluster.path)
    Path("job.yaml").write_text(JOB)
    Path("train.py").write_text(TRAIN)
    run = hpcelastic.submit("job.yaml")
    until(lambda: run.status().world_size == 3 and steps(run.status().round) == 3, run)
    cluster.cut_pair(2, 3)
    until(lambda: run.status().world_size == 2 and steps(run.status().round) == 2, run)
    (event,) = [e for e in read_event_lines(run.directory / "events") if e["event"] == "hang examined" and e["ranks"]]
    assert (event["verdict"], event["action"], event["ranks"]) == ("cut", "exclude", [2]), event
    assert event["text"] == "the connection between n2 and n3 is cut, while all nodes reach the run's directory"
    Path("enough").touch()
    assert run.wait(ENDED).phase == "succeeded"


def steps(round: int) -> int:
    """Return how many ranks have made more than ten steps in the round."""
    return sum(int(path.read_text() or 0) > 10 for path in Path().glob(f"step.{round}.*"))


def until(look: Callable[[], object], run: hpcelastic.Run) -> None:
    deadline = time.monotonic() + ENDED
    while not look():
        assert time.monotonic() < deadline, f"{run}\n" + "\n".join(run.logs())
        time.sleep(0.1)
