"""A training with the Trainer of Transformers that stops and continues has the same result as one that does not."""

import logging
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcelastic.errors import PoisonedState
from hpcelastic.training import Checkpoints

pytestmark = pytest.mark.slow  # imports Transformers


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)])}


def train(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int, stop_after: int = 1000, **options: Any
) -> SimpleNamespace:
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    import hpcelastic.training.transformers as adaptor

    samples: list[list[int]] = []

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                samples.append([int(value) for value in x])
            return {"loss": self.net(x / 20).square().mean(), "logits": x}

    class Steps(TrainerCallback):
        count = 0

        def on_step_end(self, *_: Any, **given: Any) -> None:
            self.count += 1

    steps = Steps()
    monkeypatch.setattr(adaptor, "should_stop", lambda: steps.count == stop_after)
    arguments = TrainingArguments(
        str(directory / "output"),
        max_steps=12,
        learning_rate=0.1,
        warmup_steps=3,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        label_names=["x"],
        **{"per_device_train_batch_size": 4, **options},
    )
    torch.manual_seed(seed)
    model = Net()
    stopping = EarlyStoppingCallback(early_stopping_patience=100)
    trainer = Trainer(model, arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[steps, stopping])
    torch.rand(1 + seed)  # the Trainer has set the seed; other numbers follow
    saves = adaptor.CheckpointCallback(trainer, Checkpoints(directory / "checkpoints"), save_every=2)
    path = saves.load()
    trainer.train(resume_from_checkpoint=path)
    assert path is None or not Path(path).exists()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return SimpleNamespace(
        samples=samples,
        weights=[parameter.tolist() for parameter in model.parameters()],
        losses=losses,
        best=trainer.state.best_metric,
        step=trainer.state.global_step,
    )


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("last", [7, 8, 11])
def test_it_continues_where_it_was_lost(
    last: int, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is lost after step ``last``, so the newest checkpoint is that of step 6, 8 or 10."""
    options = {"per_device_train_batch_size": 4 // accumulation, "gradient_accumulation_steps": accumulation}
    whole = train(tmp_path / "whole", monkeypatch, seed=0, **options)
    train(tmp_path / "lost", monkeypatch, seed=0, **options)
    for path in (tmp_path / "lost" / "checkpoints").iterdir():
        if path.suffix == ".pt" and int(path.stem[-2:]) > last:
            path.unlink()
    second = train(tmp_path / "lost", monkeypatch, seed=1, **options)
    assert sorted(chain(*whole.samples[: 5 * accumulation])) == [*range(20)]
    assert second.samples == whole.samples[last // 2 * 2 * accumulation :]
    assert second.weights == whole.weights
    assert (second.losses, second.best, second.step) == (whole.losses, whole.best, 12)


@pytest.mark.parametrize("stop_after", [3, 5])
def test_it_saves_and_ends_when_the_round_must_end(
    stop_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", monkeypatch, seed=0)
    first = train(tmp_path / "stopped", monkeypatch, seed=0, stop_after=stop_after)
    second = train(tmp_path / "stopped", monkeypatch, seed=1)
    assert (first.step, second.step) == (stop_after, 12)
    assert first.samples + second.samples == whole.samples


def test_another_size_of_the_batch_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, monkeypatch, seed=0, stop_after=3)
    with caplog.at_level(logging.WARNING, "hpcelastic"):
        train(tmp_path, monkeypatch, seed=0, per_device_train_batch_size=2)
    assert "the batches of the checkpoint have 4 samples over all ranks, and now have 2" in caplog.text


@pytest.mark.parametrize(
    ("factor", "options", "problem"),
    [
        (float("nan"), {"logging_nan_inf_filter": False}, "the loss is nan after 4 steps"),
        (float("nan"), {}, "the loss is nan after 4 steps"),  # of the gradient, because the Trainer hides the loss
        (1e6, {"logging_nan_inf_filter": False}, "more than 10 times"),
    ],
    ids=["not a number", "a gradient", "a spike"],
)
def test_a_bad_loss_ends_the_process(factor: float, options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from hpcelastic.training.transformers import CheckpointCallback

    bad_step = 4 if factor != factor else 30

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.steps = torch.nn.Linear(1, 1), 0

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.steps += 1
            loss = (self.net(x * 0) - 5).square().mean() * (factor if self.steps == bad_step else 1.0)
            return {"loss": loss, "logits": x}

    arguments = TrainingArguments(
        str(tmp_path / "output"),
        max_steps=40,
        learning_rate=1e-6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        label_names=["x"],
        per_device_train_batch_size=4,
        **options,
    )
    trainer = Trainer(Net(), arguments, train_dataset=Numbers())
    CheckpointCallback(trainer, Checkpoints(tmp_path / "checkpoints"), save_every=2, check_loss=True, spike=10.0)
    with pytest.raises(PoisonedState, match=problem):
        trainer.train()
