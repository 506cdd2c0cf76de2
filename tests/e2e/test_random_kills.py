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
from tests.agent.processes import eventually
from tests.e2e.proof import check_proof

NODES = 4
KILLS = 50
ROUNDS = 6
"""The number of rounds that run at least."""


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
        seen = 0
        for kill in range(KILLS):
            if kill % (KILLS // ROUNDS) == 0:  # on a slow machine, kills in quick succession leave no time for a round
                assert eventually(lambda seen=seen: newest_round(paths.root) > seen), run.status()  # type: ignore[misc]
                seen = newest_round(paths.root)
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
    assert check_proof(paths.root) >= ROUNDS


def newest_round(run: Path) -> int:
    """Return the newest round that has run; 0 if there is none."""
    return max((int(path.name.partition(".")[0]) for path in (run / "proof").glob("*.json")), default=0)
