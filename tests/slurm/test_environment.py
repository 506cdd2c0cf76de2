"""The rank of a process among the tasks of its job step, from SLURM's environment variables."""

from collections.abc import Mapping

import pytest

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.slurm.environment import StepRank, identity_of, outside_of_steps, slurm_task, step_rank

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURMD_NODENAME": "n1",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "8",
}

PLACES = {
    "task of a step": (STEP, StepRank("7.0.2", 3, 4)),
    "requeued": ({**STEP, "SLURM_RESTART_COUNT": "1"}, StepRank("7.1.2", 3, 4)),
    "interactive step of salloc": ({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, StepRank("7.0.2", 0, 1)),
    "batch script, 26.05": ({**STEP, "SLURM_STEP_ID": "-5"}, None),
    "batch script, unsigned step id": ({**STEP, "SLURM_STEP_ID": "4294967291"}, None),
    "batch script": ({name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}, None),
    "no job": ({}, None),
}


@pytest.mark.parametrize(("environ", "place"), PLACES.values(), ids=PLACES.keys())
def test_the_rank_of_a_task(environ: Mapping[str, str], place: StepRank | None) -> None:
    assert step_rank(environ) == place


@pytest.mark.parametrize(
    ("environ", "outside"),
    [(STEP, False), ({"SLURM_JOB_ID": "7"}, True), ({**STEP, "SLURM_STEP_ID": "-5"}, True), ({}, False)],
    ids=["task", "batch script or salloc", "batch script, 26.05", "no job"],
)
def test_a_process_of_a_job_outside_of_a_step(environ: Mapping[str, str], outside: bool) -> None:
    assert outside_of_steps(environ) is outside


@pytest.mark.parametrize("launcher", ["10.1.0.1", ""], ids=["set", "not set"])
def test_the_launchers_address_is_kept(launcher: str) -> None:
    task = slurm_task({**STEP, **({"SLURM_LAUNCH_NODE_IPADDR": launcher} if launcher else {})})
    assert task is not None
    assert identity_of(task).launcher == launcher


TOPOLOGIES = {
    "tree": ("top.s1.n1", "switch.switch.node", "top.s1"),
    "tree of one switch": ("s1.n1", "switch.node", "s1"),
    "under two switches": ("top.s[1-2].n1", "switch.switch.node", "top.s[1-2]"),
    "block": ("b8.n1", "block.node", "b8"),
    "a node's name with dots": ("top.s1.n1.site.org", "switch.switch.node", "top.s1"),
    "no topology": ("n1", "node", ""),
    "no topology, a node's name with dots": ("n1.site.org", "node", ""),
    "too short": ("n1", "switch.node", ""),
    "of an unknown kind": ("top.s1", "switch.switch", ""),
    "no pattern": ("top.s1.n1", "", ""),
    "not set": ("", "", ""),
}


@pytest.mark.parametrize(("address", "pattern", "topology"), TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_the_switches_above_a_node(address: str, pattern: str, topology: str) -> None:
    variables = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    task = slurm_task({**STEP, **{name: value for name, value in variables.items() if value}})
    assert task is not None
    assert identity_of(task).topology == topology


def test_elements_of_an_array_may_share_a_node() -> None:
    task = slurm_task({**STEP, "SLURM_NNODES": "1", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"})
    assert task is not None
    assert (task.array_job, task.array_task) == ("5", 3)
    assert identity_of(task) == NodeIdentity("n1_3", job="7", host="n1", order=3)
