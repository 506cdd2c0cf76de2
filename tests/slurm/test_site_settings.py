"""Runs with settings of SLURM that some sites have, and that no other test uses."""

from collections.abc import Callable

import pytest

from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.cases import CASES
from tests.slurm.scenario.stage import SHAPES, Stage

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(200)]

FreshCluster = Callable[..., SlurmCluster]
WHOLE_NODES = "SelectType=select/linear\nSelectTypeParameters=CR_Memory"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", ["node killed", "requeue by hand"])
def test_run_survives_with_whole_nodes(fault: str, shape: str, fresh_cluster: FreshCluster) -> None:
    case, cluster = CASES[fault], fresh_cluster(nodes=4, extra_conf=f"{presets.QUICK}\n{WHOLE_NODES}")
    with Stage(cluster, case.setting(shape)) as stage:
        case.play(stage)
        case.end(stage)
        assert stage.run.status().restarts == case.restarts, stage.describe()
        assert stage.job_states() <= case.ends(shape)
