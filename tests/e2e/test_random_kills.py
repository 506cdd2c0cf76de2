"""Any agent, also the first one, can be killed at any moment, and the run continues."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from tests.e2e.proof import check_proof

NODES = 4
KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "notifications"),
    [
        pytest.param(1, "on", id="1-on", marks=pytest.mark.weekly),
        pytest.param(2, "on", id="2-on", marks=pytest.mark.weekly),
        pytest.param(3, "off", id="3-off"),
        pytest.param(4, "lossy", id="4-lossy"),
    ],
)
def test_run_survives_50_random_kills(
    seed: int, notifications: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if notifications == "lossy":
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("lossy")))
    script = Path(__file__).with_name("steady.py")
    job = {
        "run": {"name": "kills", "directory": str(tmp_path)},
        "entrypoint": {"script": str(script)},
        "nodes": f"2..{NODES}",
        "workers": {"per_node": 1, "stop_grace": 1, "preload": ["argparse"] if seed % 2 else []},
        "rendezvous": {"last_call": 1, "lease": 2, "margin": 0.5, "poll": 0.05, "join_timeout": 120},
        "restarts": {"max": 0},
        "network": {"notifications": notifications != "off"},
    }
    paths = prepare(resolve(job, []))
    nodes, run = LocalNodes(paths, NODES), Run(paths.root)
    dice = random.Random(seed)
    try:
        nodes.start()
        for _ in range(KILLS):
            time.sleep(
                dice.uniform(0.0, 0.7 if notifications != "off" else 1.4)
            )  # with files only, detection takes longer
            victims = dice.sample(range(NODES), dice.choice([1, 1, 1, 2, NODES]))
            whole = dice.random() < 0.5
            for victim in victims:
                if whole:
                    nodes.kill_node(victim)
                elif victim in nodes.alive():
                    os.kill(nodes.alive()[victim].pid, signal.SIGKILL)
            if dice.random() < 0.3:
                time.sleep(dice.uniform(0.0, 3.0))  # long enough for the others to continue without them
            for victim in victims:
                nodes.start_node(victim)
            assert run.status().phase in ("joining", "running"), run.status()
        (paths.root / "finish").touch()
        assert set(nodes.wait(timeout=60).values()) == {0}
    finally:
        for index in range(NODES):
            nodes.kill_node(index)
    status = run.status()
    assert status.phase == "succeeded"
    assert status.restarts == 0, "a lost node must not spend the restart budget"
    assert check_proof(paths.root) > 5
