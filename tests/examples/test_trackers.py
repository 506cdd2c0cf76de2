"""The example with a tracker (digits/trackers.py): the node that logs is lost, then all are; no step is missing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
TIMEOUT = 150.0
EPOCHS, PER_EPOCH, RECENT = 12, 23, 100

STEPS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
known = EventAccumulator(f"{directory}/tensorboard/r", size_guidance={"scalars": 0}, purge_orphaned_data=False)
steps = [scalar.step for scalar in known.Reload().Scalars("loss")]
""",
    "mlflow": """
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(f"file://{directory}/mlruns")
(run,) = client.search_runs(["0"])
steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]
""",
    "wandb": """
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record

def records(data):  # after 7 bytes, as in the log of LevelDB: blocks of 32 KiB, each part with 7 bytes before it
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield record
            record = b""

steps = []
for path in sorted(Path(directory).glob("wandb/offline-run-*-r/run-r.wandb")):
    for data in records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
""",
}
"""By tracker, code that reads its files."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that installs a tracker, and returns the directory for ``PYTHONPATH``."""

    def install(tracker: str) -> Path:
        target = tmp_path_factory.mktemp(tracker)
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), PACKAGES[tracker]]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        for name in ("numpy", "numpy.libs"):  # the environment's own fits its torch
            subprocess.run(["rm", "-rf", str(target / name)], check=True)
        return target

    return install


class Stage:
    """Three agents on this machine that train with a tracker."""

    def __init__(self, tracker: str, packages: Path, directory: Path) -> None:
        overrides = [
            "run.name=r",
            f"run.directory={directory}",
            "nodes=2..3",
            f"entrypoint.script={ROOT / 'examples/digits/train_tracked.py'}",
            f"entrypoint.args=[--epochs, {EPOCHS}, --checkpoint-every, 10, --step-time, 0.05]",
            f"environment.TRACKER={tracker}",
            f"environment.PYTHONPATH={os.pathsep.join(filter(None, (str(packages), os.environ.get('PYTHONPATH'))))}",
        ]
        paths = prepare(resolve(ROOT / "configs" / "digits.yaml", overrides))
        self.nodes, self.run = LocalNodes(paths, 3), Run(paths.root)

    def until(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not look():
            assert time.monotonic() < deadline, f"{what}: {self.run.status()}\n" + "\n".join(self.run.logs()[-40:])
            time.sleep(0.05)

    def until_trains(self, round: int, nodes: int) -> None:
        def trains() -> bool:
            status = self.run.status()
            return status.phase == "running" and status.round >= round and status.world_size == nodes

        self.until(f"round {round} of {nodes} nodes", trains)

    def stop(self) -> None:
        for node in self.nodes.alive():
            self.nodes.kill_node(node)


def steps(tracker: str, packages: Path, directory: Path, *, ended: bool = False) -> list[int]:
    """Return the steps that a tracker has. While the run lasts, its files may not exist yet, or may be incomplete."""
    code = f"import json\ndirectory = {str(directory)!r}\n{STEPS[tracker]}\nprint(json.dumps(steps))"
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or not ended, done.stderr
    if done.returncode:
        return []
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("tracker", PACKAGES)
def test_each_step_is_logged_once(tracker: str, installed: Callable[[str], Path], tmp_path: Path) -> None:
    packages = installed(tracker)
    stage = Stage(tracker, packages, tmp_path)
    try:
        stage.nodes.start()
        stage.until_trains(1, 3)
        stage.until("steps", lambda: len(steps(tracker, packages, tmp_path / "r")) > 20)
        logs = next(node.name for node in stage.run.status().nodes if node.ranks == "0")
        stage.nodes.kill_node(int(logs.removeprefix("node")))
        stage.until_trains(2, 2)
        reached = len(steps(tracker, packages, tmp_path / "r"))
        stage.until("more steps", lambda: len(steps(tracker, packages, tmp_path / "r")) > reached + 20)
        stage.stop()
        stage.nodes.start()
        assert stage.run.wait(TIMEOUT).phase == "succeeded"
    finally:
        stage.stop()
    found = steps(tracker, packages, tmp_path / "r", ended=True)
    expected = list(range(1, EPOCHS * PER_EPOCH + 1))
    assert (sorted({*found}) if tracker == "wandb" else found) == expected
    assert len(found) <= len(expected) + 2 * RECENT, "wandb has the newest steps of a node that was lost twice"
