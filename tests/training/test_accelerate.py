"""A training with Accelerate that stops and continues has the same result as one that does not stop."""

import random
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hpcelastic.errors import ConfigError
from hpcelastic.training import Checkpoints

pytestmark = pytest.mark.slow  # imports Accelerate

STEPS = 12


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def train(directory: Path, seed: int, stop_after: int = STEPS, counters: int = 1) -> SimpleNamespace:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from hpcelastic.training.accelerate import load_state, save_state

    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(seed)
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=7)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    data = DataLoader(TensorDataset(torch.arange(20.0).reshape(-1, 1)), batch_size=4, shuffle=True)
    net, optimizer, schedule, data = accelerator.prepare(net, optimizer, schedule, data)
    counter = [Counter() for _ in range(counters)]
    accelerator.register_for_checkpointing(*counter)
    checkpoints, samples = Checkpoints(directory), []
    step = load_state(accelerator, checkpoints)
    while step < stop_after:
        epoch, position = divmod(step, len(data))
        data.set_epoch(epoch)
        for (batch,) in accelerator.skip_first_batches(data, position):
            samples.append([int(value) for value in batch])
            optimizer.zero_grad()
            accelerator.backward(net(batch / 20).square().mean() * random.random() * float(np.random.rand()))
            optimizer.step()
            schedule.step()
            counter[0].count += 1
            step += 1
            if step == stop_after:
                break
    save_state(accelerator, checkpoints, step)
    weights = [parameter.tolist() for parameter in net.parameters()]
    return SimpleNamespace(samples=samples, weights=weights, count=counter[0].count, lr=schedule.get_last_lr())


def test_it_continues_where_it_stopped(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", seed=0)
    first = train(tmp_path / "stopped", seed=0, stop_after=7)
    second = train(tmp_path / "stopped", seed=1)
    assert sorted(chain(*whole.samples[:5])) == [*range(20)]
    assert first.samples + second.samples == whole.samples
    assert (second.count, second.lr, second.weights) == (whole.count, whole.lr, whole.weights)


def test_a_script_with_other_objects_is_refused(tmp_path: Path) -> None:
    train(tmp_path, seed=0, stop_after=1)
    with pytest.raises(ConfigError, match="has 1 custom objects, and this script has 2"):
        train(tmp_path, seed=0, counters=2)
