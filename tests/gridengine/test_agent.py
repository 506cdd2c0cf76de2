"""An agent in a Grid Engine job: its node and its signals."""

import signal
from pathlib import Path

import pytest

from hpcelastic.gridengine.batch_system import GridEngineBatchSystem
from hpcelastic.gridengine.environment import grid_engine_task
from hpcelastic.protocol.state import Notice

TASK = {"SGE_JOB_SPOOL_DIR": "/spool/active_jobs/7.1/1.n2", "JOB_ID": "7", "HOSTNAME": "n2.site.org"}


def test_the_place_of_a_task(tmp_path: Path) -> None:
    hosts = tmp_path / "pe_hostfile"
    hosts.write_text("n1.site.org 1 all.q@n1.site.org UNDEFINED\nn2.site.org 1 all.q@n2.site.org UNDEFINED\n")
    task = grid_engine_task({**TASK, "PE_HOSTFILE": str(hosts), "SGE_TASK_ID": "2"})
    assert task is not None and task.job == "7.2" and task.nodes == ("n1", "n2")
    assert (task.identity.name, task.identity.order) == ("n2", 1)


def test_a_task_whose_file_of_nodes_is_on_another_node() -> None:
    task = grid_engine_task({**TASK, "PE_HOSTFILE": "/spool/absent", "SGE_TASK_ID": "undefined"})
    assert task is not None and task.job == "7" and task.nodes == ()
    assert (task.identity.name, task.identity.order) == ("n2", 0)


@pytest.mark.parametrize("absent", TASK)
def test_a_process_outside_of_a_job(absent: str) -> None:
    assert grid_engine_task({name: value for name, value in TASK.items() if name != absent}) is None


def test_the_meaning_of_a_signal() -> None:
    system = GridEngineBatchSystem("7.2", 30.0, 100.0)
    assert system.resolve_signal(signal.SIGUSR2) == Notice("Grid Engine's job 7.2 is near its time limit", 100.0)
    assert system.resolve_signal(signal.SIGTERM) == Notice("SIGTERM", 30.0)
    assert system.resolve_signal(signal.SIGUSR1) is None
