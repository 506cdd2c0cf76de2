"""Plain torchrun on a real cluster with a rendezvous in our files: by the plug-in, or by torch's own protocol."""

import json
import os
import signal
from typing import Any

import pytest

from tests.slurm.test_templates import ENDED, Desk, desk

__all__ = ["desk"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BACKENDS = {
    "hpcelastic": "lease=2,margin=0.5,poll=0.1,last_call=2",
    "hpcelastic-dynamic": "keep_alive_interval=2,keep_alive_max_attempt=4,last_call_timeout=2",
}

TRAIN = """\
import json, os, pathlib, time
from datetime import timedelta
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
output, rank = pathlib.Path("output"), dist.get_rank()
facts = {"rank": rank, "of": dist.get_world_size(), "pid": os.getpid(), "node": os.environ["SLURMD_NODENAME"]}
path = output / f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}-{rank}"
draft = path.with_name(f"{path.name}.new")
draft.write_text(json.dumps(facts))
draft.rename(path)
over = torch.zeros(1)
while not over.item():
    over += rank == 0 and pathlib.Path("finish").exists()
    dist.all_reduce(over)
    time.sleep(0.05)
print("rank", rank, "of", dist.get_world_size(), "is done", flush=True)
dist.destroy_process_group()
"""

JOB = """\
#!/bin/bash
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --output=%x-%j.log
srun torchrun --nnodes 2:4 --nproc-per-node 1 --max-restarts 5 --monitor-interval 0.1 \\
    --rdzv-backend {backend} --rdzv-endpoint ./runs --rdzv-id lines --rdzv-conf {conf} train.py
"""


class Line:
    """Jobs of one run whose steps are plain torchrun."""

    def __init__(self, desk: Desk, backend: str) -> None:
        self.desk = desk
        (desk.path / "train.py").write_text(TRAIN)
        (desk.path / "output").mkdir()
        (desk.path / "line").write_text(JOB.format(backend=backend, conf=BACKENDS[backend]))
        self.jobs: list[str] = []
        self._seen: set[str] = set()

    def start(self) -> None:
        """Add a node, as a job of its own, so that any node may die."""
        self.jobs.append(self.desk.sbatch("line"))

    def round(self, workers: int) -> list[dict[str, Any]]:
        """Wait for a new group of so many workers. Return their output by rank."""
        found: dict[str, list[dict[str, Any]]] = {}

        def look() -> bool:
            found.clear()
            for path in sorted((self.desk.path / "output").glob("*[0-9]")):
                store = path.name.rpartition("-")[0]
                if store not in self._seen:
                    found.setdefault(store, []).append(json.loads(path.read_text()))
            return any(len(output) == workers == output[0]["of"] for output in found.values())

        try:
            self.desk.until(f"a round of {workers}", look, self.jobs[0])
        except AssertionError:
            raise AssertionError("\n".join(map(self.desk.log, self.jobs))) from None
        self._seen |= found.keys()
        output = next(output for output in found.values() if len(output) == workers == output[0]["of"])
        assert [worker["rank"] for worker in sorted(output, key=lambda worker: worker["rank"])] == list(range(workers))
        return output

    def kill(self, worker: dict[str, Any]) -> None:
        pid = self.desk.cluster.pid_of(int(worker["node"].removeprefix("n")), worker["pid"])
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torchrun_continues_when_any_process_dies(backend: str, desk: Desk) -> None:
    line = Line(desk, backend)
    for _ in range(3):
        line.start()
    output = line.round(workers=3)
    line.kill(output[1])
    output = line.round(workers=3)
    (first,) = (worker["node"] for worker in output if worker["rank"] == 0)
    desk.cluster.fail_node(int(first.removeprefix("n")))
    line.round(workers=2)
    line.start()
    output = line.round(workers=3)
    assert first not in {worker["node"] for worker in output}
    desk.finish()
    states = [desk.cluster.wait_job(job, ("COMPLETED", "NODE_FAIL"), ENDED) for job in line.jobs]
    assert sorted(states) == ["COMPLETED"] * 3 + ["NODE_FAIL"]
    done = [rank for job in line.jobs for rank in range(3) if f"rank {rank} of 3 is done" in desk.log(job)]
    assert sorted(done) == [0, 1, 2]
