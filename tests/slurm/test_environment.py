"""The place of a process among the tasks of its job step, as SLURM's variables tell."""

from collections.abc import Mapping

import pytest

from hpcelastic.slurm.environment import StepRank, place_of, slurm_task, step_rank

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
    "batch script": ({name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}, None),
    "no job": ({}, None),
}


@pytest.mark.parametrize(("environ", "place"), PLACES.values(), ids=PLACES.keys())
def test_the_place_of_a_task(environ: Mapping[str, str], place: StepRank | None) -> None:
    assert step_rank(environ) == place


@pytest.mark.parametrize("launcher", ["10.1.0.1", ""], ids=["told", "not told"])
def test_the_launchers_address_is_kept(launcher: str) -> None:
    task = slurm_task({**STEP, **({"SLURM_LAUNCH_NODE_IPADDR": launcher} if launcher else {})})
    assert task is not None
    assert place_of(task).launcher == launcher
