"""The API for training scripts: the worker's context, checkpoints, batches for any world size, publication, stopping.

It works the same under hpcelastic, under torchrun and with plain ``python train.py``. torch is imported at first use,
so a worker that only reads its context starts at once.
"""

from .batches import GlobalBatches
from .checkpoints import Checkpoint, Checkpoints
from .context import Context, context
from .elastic import Elastic
from .publish import claim, publish
from .rounds import resumable
from .sharded_batches import SequentialShards, ShardedBatches, ShardedDataset
from .stop import ignore_sigterm, on_stop, report_progress, should_stop, time_left, why_stop
from .store import store

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Context",
    "Elastic",
    "GlobalBatches",
    "SequentialShards",
    "ShardedBatches",
    "ShardedDataset",
    "claim",
    "context",
    "ignore_sigterm",
    "on_stop",
    "publish",
    "report_progress",
    "resumable",
    "should_stop",
    "store",
    "time_left",
    "why_stop",
]
