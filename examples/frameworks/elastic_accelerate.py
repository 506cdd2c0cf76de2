"""Trains the model of train_accelerate.py with checkpoints of hpcelastic, in the background and at any step."""

import argparse
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader
from train_accelerate import digits, tell

from hpcelastic.training import Checkpoints, should_stop
from hpcelastic.training.accelerate import load_state, save_state


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="output/accelerate", help="on a filesystem of all nodes")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    args = parser.parse_args()

    # Each rank has a part of each batch, so the number of a step says which samples follow, for any number of ranks.
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=config)
    torch.manual_seed(0)
    train, test = digits()
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, loader)

    checkpoints = Checkpoints(args.output)
    step = load_state(accelerator, checkpoints)
    if step:
        tell(accelerator, model, test, f"resumed at step {step}")
    stopping = False
    while step < args.steps and not stopping:
        epoch, position = divmod(step, len(batches))
        batches.set_epoch(epoch)
        for images, labels in accelerator.skip_first_batches(batches, position):
            time.sleep(args.step_time)
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            schedule.step()
            step += 1
            stopping = should_stop()
            if stopping or step % args.save_every == 0 or step == args.steps:
                save_state(accelerator, checkpoints, step, wait=stopping)
                tell(accelerator, model, test, f"saved step {step}")
            if stopping or step == args.steps:
                break
    if not stopping:
        accelerator.print(f"trained {step} steps", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
