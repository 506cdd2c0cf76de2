"""A training with Lightning that stops and continues has the same result as one that does not stop."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from hpcelastic.errors import ConfigError, PoisonedState
from hpcelastic.training import Checkpoints, GlobalBatches

pytestmark = pytest.mark.slow  # imports Lightning

SAMPLES, BATCHES = 22, GlobalBatches(22, 4)
"""Six batches in an epoch, of which the last has two samples."""


def fit(directory: Path, stop_after: int | None, monkeypatch: pytest.MonkeyPatch, **options: Any) -> SimpleNamespace:
    """Train two epochs; return the samples, what a callback has seen, the parameters, and the learning rate."""
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping

    import hpcelastic.training.lightning as adaptor

    class Net(LightningModule):
        def __init__(self, options: object) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
            self.samples: list[list[int]] = []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            self.samples.append([int(value) for value in batch[0]])
            return self.net(batch[0] / SAMPLES).square().mean()

        def on_train_epoch_end(self) -> None:
            self.log("loss", 1.0 / (1 + self.current_epoch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    class Counter(Callback):
        count = 0

        def on_train_batch_start(self, *_: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    torch.manual_seed(0 if stop_after else 1)  # what is loaded replaces it
    model, counter = Net(object()), Counter()
    saves = adaptor.CheckpointCallback(Checkpoints(directory), save_every=2)
    monkeypatch.setattr(adaptor, "should_stop", lambda: len(model.samples) == stop_after)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[counter, EarlyStopping("loss", patience=5, check_on_train_epoch_end=True), saves],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = TensorDataset(torch.arange(float(SAMPLES)).reshape(-1, 1))
    try:
        trainer.fit(model, adaptor.EpochBatches(trainer, data, BATCHES))
    except SystemExit as end:
        assert end.code is None
    return SimpleNamespace(
        samples=model.samples,
        count=counter.count,
        weights=[parameter.tolist() for parameter in model.parameters()],
        lr=trainer.optimizers[0].param_groups[0]["lr"],
        epochs=trainer.current_epoch,
    )


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop_after", [4, 6, 8, 12])
def test_it_continues_where_it_stopped(
    stop_after: int, accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(tmp_path / "whole", 1000, monkeypatch, accumulate_grad_batches=accumulate)
    assert [each for batch in whole.samples for each in batch] == [*BATCHES_IN_ORDER]
    first = fit(tmp_path / "stopped", stop_after, monkeypatch, accumulate_grad_batches=accumulate)
    second = fit(tmp_path / "stopped", None, monkeypatch, accumulate_grad_batches=accumulate)
    assert first.samples == whole.samples[:stop_after]
    assert second.samples == whole.samples[stop_after:]
    assert (second.count, second.epochs, second.lr) == (whole.count, whole.epochs, whole.lr)
    assert second.weights == whole.weights


BATCHES_IN_ORDER = [index for step in range(2 * BATCHES.per_epoch) for index in BATCHES.indices(step)]


def test_a_lost_process_repeats_the_steps_since_the_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(tmp_path / "whole", 1000, monkeypatch)
    fit(tmp_path / "lost", 1000, monkeypatch)
    for step in (10, 12):
        (tmp_path / "lost" / f"round-0000.step-{step:08}.pt").unlink()
    again = fit(tmp_path / "lost", None, monkeypatch)
    assert again.samples == whole.samples[8:]
    assert again.weights == whole.weights


def test_a_strategy_with_checkpoints_of_its_own_is_refused(tmp_path: Path) -> None:
    from hpcelastic.training.lightning import CheckpointCallback

    strategy = SimpleNamespace(
        restore_checkpoint_after_setup=True, optimizers=[], lightning_module_state_dict=lambda: {"w": torch.ones(1)}
    )
    callback: Any = CheckpointCallback(Checkpoints(tmp_path), save_every=1)
    with pytest.raises(ConfigError, match="SimpleNamespace loads checkpoints in a format of its own"):
        callback.on_fit_start(SimpleNamespace(strategy=strategy), None)


@pytest.mark.parametrize("check", [True, False])
def test_a_loss_that_is_not_finite_ends_the_process_before_the_backward_pass(check: bool, tmp_path: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from hpcelastic.training.lightning import CheckpointCallback

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean() * (math.nan if number == 3 else 1.0)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    model = Net()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[CheckpointCallback(Checkpoints(tmp_path), save_every=2, check_loss=check)],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(TensorDataset(torch.ones(6, 1)))
    if not check:
        trainer.fit(model, loader)
        return
    with pytest.raises(
        PoisonedState, match="the loss is nan after 3 steps; training returns to the checkpoint of step 2"
    ):
        trainer.fit(model, loader)
    assert torch.isfinite(model.net.weight).all()
