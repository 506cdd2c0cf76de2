"""Trains a small network on generated data. Replace Data and Net by your own."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from hpcelastic.training import Checkpoints, Elastic, GlobalBatches, context

STEPS = 2000


class Data(torch.utils.data.Dataset):
    """10,000 points in 32 dimensions. The class of a point is the sign of a sum."""

    def __init__(self):
        self.points = torch.randn(10_000, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return point, (point.sum() > 0).long()


def train(elastic, data):  # called again after every fault and change of the nodes, in the same process
    device = next(elastic.model.parameters()).device
    ddp = DistributedDataParallel(elastic.model)
    for step, (x, y) in elastic.steps(data, last=STEPS):  # this rank's samples of the step
        loss = F.cross_entropy(ddp(x.to(device)), y.to(device), reduction="sum")
        elastic.optimizer.zero_grad()
        elastic.scale_loss(loss).backward()  # the mean over the samples of all ranks
        elastic.optimizer.step()
        if step % 200 == 0 and context().rank == 0:
            print(f"step {step}: loss {loss.item() / max(1, len(x)):.4f}, {context().world_size} ranks", flush=True)


def main():
    here = context()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", here.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)).to(device)
    data = Data()
    elastic = Elastic(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        batches=GlobalBatches(len(data), 256),  # 256 samples in a step, on all ranks together
        checkpoints=Checkpoints(),
        save_every=500,  # steps between two checkpoints on disk
    )
    elastic.run(train, data)  # creates the process group before each call of train
    if context().rank == 0:
        print("done", flush=True)


if __name__ == "__main__":
    main()
