"""One run of a tracker for the whole training, over all rounds, nodes and requeues: in files, without a server.

The tracker has the steps up to `last_step`. The rank that logs may be another one in each round, on another node. It
asks the tracker what it has already, so a step is not logged twice. What the last rank has not logged any more is in
the state of the training.
"""

import os
import time
from pathlib import Path
from typing import Protocol

from hpcelastic.training import publish


class Tracker(Protocol):
    """A run of a tracker that is open."""

    last_step: int
    """The newest step that the tracker has; 0 if it has none."""

    def log(self, step: int, loss: float) -> None:
        """Log the loss of a step."""

    def close(self) -> None:
        """Write what is not written yet."""


class TensorBoard:
    """Files that ``tensorboard --logdir`` shows."""

    def __init__(self, directory: Path, name: str) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        path = directory / "tensorboard" / name
        path.mkdir(parents=True, exist_ok=True)
        known = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        scalars = known.Scalars("loss") if "loss" in known.Tags()["scalars"] else []
        self.last_step = max((scalar.step for scalar in scalars), default=0)
        self._writer = SummaryWriter(str(path))

    def log(self, step: int, loss: float) -> None:
        self._writer.add_scalar("loss", loss, step)
        self._writer.flush()  # before the step counts as logged

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow in files. With ``MLFLOW_TRACKING_URI`` it is on a server."""

    def __init__(self, directory: Path, name: str) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # there is one writer at a time
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", (directory / "mlruns").as_uri()))
        record = directory / "mlflow-run"
        if not record.exists():
            with publish(record) as file:
                file.write(self._client.create_run("0", run_name=name).info.run_id.encode())
        self._run = record.read_text()
        self.last_step = max((m.step for m in self._client.get_metric_history(self._run, "loss")), default=0)

    def log(self, step: int, loss: float) -> None:
        self._client.log_metric(self._run, "loss", loss, step=step)

    def close(self) -> None:
        pass


class WandB:
    """A run of Weights & Biases. ``wandb sync`` uploads it, unless ``WANDB_MODE`` is ``online``.

    A process of wandb writes the files some time later, and they cannot be read again. So a step counts as logged after
    ten seconds, and after a crash the steps since then are logged once more.
    """

    DELAY = 10.0

    def __init__(self, directory: Path, name: str) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        import wandb

        self._run = wandb.init(project="hpcelastic", id=name, resume="allow", dir=directory)
        self._record = directory / "wandb-step"
        self.last_step = int(self._record.read_text()) if self._record.exists() else 0
        self._noted, self._note = self.last_step, time.monotonic()

    def log(self, step: int, loss: float) -> None:
        self._run.log({"loss": loss}, step=step)
        if time.monotonic() - self._note >= self.DELAY:
            self._write(self._noted)
            self._noted, self._note = step, time.monotonic()

    def close(self) -> None:
        self._run.finish()
        self._write(self.last_step)

    def _write(self, step: int) -> None:
        with publish(self._record) as file:
            file.write(str(step).encode())


TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
